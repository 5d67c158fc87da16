"""POST /v1/chat/completions with the openai client."""
import json

import pytest

from server import DENSE, chat

MESSAGES = [{"role": "user", "content": "The quick brown fox"}]
GREEDY = {"temperature": 0, "extra_body": {"ignore_eos": True}}


@pytest.fixture(scope="module")
def alone(client, model):
    """The greedy answer of 24 tokens."""
    return client.chat.completions.create(model=model, messages=MESSAGES, max_tokens=24, **GREEDY)


def test_an_answer_has_the_openai_shape(alone, model):
    assert alone.id.startswith("chatcmpl-") and alone.object == "chat.completion" and alone.model == model
    choice = alone.choices[0]
    assert choice.index == 0 and choice.message.role == "assistant" and choice.message.content
    assert choice.finish_reason == "length" and choice.logprobs is None
    assert alone.usage.completion_tokens == 24
    assert alone.usage.total_tokens == alone.usage.prompt_tokens + 24


def test_the_same_request_gives_the_same_text(client, model, alone):
    again = client.chat.completions.create(model=model, messages=MESSAGES, max_tokens=24, **GREEDY)
    assert again.choices[0].message.content == alone.choices[0].message.content


def test_a_stream_is_the_same_text_in_pieces(client, model, alone):
    text, roles, finishes, usages = "", [], [], []
    stream = client.chat.completions.create(
        model=model, messages=MESSAGES, max_tokens=24, stream=True, stream_options={"include_usage": True}, **GREEDY)
    for chunk in stream:
        assert chunk.object == "chat.completion.chunk"
        if chunk.usage:
            usages.append((chunk.usage, chunk.choices))
        for choice in chunk.choices:
            roles += [choice.delta.role] if choice.delta.role else []
            text += choice.delta.content or ""
            finishes += [choice.finish_reason] if choice.finish_reason else []
    assert text == alone.choices[0].message.content
    assert roles == ["assistant"] and finishes == ["length"]
    assert len(usages) == 1 and usages[0][1] == []
    assert usages[0][0] == alone.usage


def test_no_usage_unless_it_is_asked_for(client, model):
    stream = client.chat.completions.create(model=model, messages=MESSAGES, max_tokens=3, stream=True, **GREEDY)
    assert all(chunk.usage is None for chunk in stream)


def test_continuous_usage_counts_up(client, model):
    stream = client.chat.completions.create(
        model=model, messages=MESSAGES, max_tokens=8, stream=True, stream_options={"include_usage": True, "continuous_usage_stats": True}, **GREEDY)
    counts = [chunk.usage.completion_tokens for chunk in stream]
    assert counts == sorted(counts) and counts[0] == 0 and counts[-1] == 8


def test_n_choices_share_the_prompt_and_differ(client, model):
    r = client.chat.completions.create(model=model, messages=MESSAGES, max_tokens=16, n=4, temperature=1.5, seed=7, extra_body={"ignore_eos": True})
    assert [c.index for c in r.choices] == [0, 1, 2, 3]
    assert len({c.message.content for c in r.choices}) == 4
    assert r.usage.completion_tokens == 64


def test_n_choices_stream_interleaved(client, model):
    whole = client.chat.completions.create(model=model, messages=MESSAGES, max_tokens=12, n=3, temperature=1.5, seed=9, extra_body={"ignore_eos": True})
    texts = ["", "", ""]
    for chunk in client.chat.completions.create(
            model=model, messages=MESSAGES, max_tokens=12, n=3, temperature=1.5, seed=9, stream=True, extra_body={"ignore_eos": True}):
        for c in chunk.choices:
            texts[c.index] += c.delta.content or ""
    assert texts == [c.message.content for c in whole.choices]


def test_a_seed_repeats_and_another_one_does_not(client, model):
    def run(seed):
        r = client.chat.completions.create(model=model, messages=MESSAGES, max_tokens=16, temperature=1.2, seed=seed, extra_body={"ignore_eos": True})
        return r.choices[0].message.content

    assert run(1) == run(1)
    assert len({run(s) for s in (1, 2, 3)}) == 3


def test_logprobs(client, model):
    r = client.chat.completions.create(model=model, messages=MESSAGES, max_tokens=6, logprobs=True, top_logprobs=3, **GREEDY)
    content = r.choices[0].logprobs.content
    assert len(content) == 6
    for entry in content:
        assert entry.logprob <= 0 and len(entry.top_logprobs) == 3
        best = [t.logprob for t in entry.top_logprobs]
        assert best == sorted(best, reverse=True)
        assert entry.logprob == best[0] and entry.token == entry.top_logprobs[0].token  # greedy
    joined = b"".join(bytes(e.bytes) for e in content)
    assert joined.decode(errors="replace") == r.choices[0].message.content


def test_logprobs_without_top_ones(client, model):
    r = client.chat.completions.create(model=model, messages=MESSAGES, max_tokens=3, logprobs=True, **GREEDY)
    assert [e.top_logprobs for e in r.choices[0].logprobs.content] == [[], [], []]


def test_streamed_logprobs_are_the_same(client, model):
    whole = client.chat.completions.create(model=model, messages=MESSAGES, max_tokens=8, logprobs=True, top_logprobs=2, **GREEDY)
    entries = []
    for chunk in client.chat.completions.create(model=model, messages=MESSAGES, max_tokens=8, logprobs=True, top_logprobs=2, stream=True, **GREEDY):
        for c in chunk.choices:
            entries += c.logprobs.content if c.logprobs else []
    assert entries == whole.choices[0].logprobs.content


def find_stop(text):
    """A stop string that first occurs in the middle of the text."""
    for at in range(6, len(text) - 3):
        if text.find(text[at:at + 3]) == at and "�" not in text[at:at + 3]:
            return at, text[at:at + 3]
    raise AssertionError(text)


def test_a_stop_string_ends_and_is_left_out(client, model, alone):
    text = alone.choices[0].message.content
    at, stop = find_stop(text)
    r = client.chat.completions.create(model=model, messages=MESSAGES, max_tokens=24, stop=["never seen", stop], **GREEDY)
    assert r.choices[0].message.content == text[:at]
    assert r.choices[0].finish_reason == "stop" and r.choices[0].stop_reason == stop
    streamed = client.chat.completions.create(model=model, messages=MESSAGES, max_tokens=24, stop=stop, stream=True, **GREEDY)
    assert "".join(c.choices[0].delta.content or "" for c in streamed) == text[:at]
    r = client.chat.completions.create(
        model=model, messages=MESSAGES, max_tokens=24, stop=stop, temperature=0, extra_body={"ignore_eos": True, "include_stop_str_in_output": True})
    assert r.choices[0].message.content == text[:at + 3]


def test_a_stop_token_id_ends_and_is_named(server):
    ids = server.post("/v1/chat/completions", chat(return_token_ids=True)).json()["choices"][0]["token_ids"]
    stop = next(i for i in ids[2:] if i not in ids[:2])
    choice = server.post("/v1/chat/completions", chat(stop_token_ids=[stop], return_token_ids=True)).json()["choices"][0]
    assert choice["finish_reason"] == "stop" and choice["stop_reason"] == stop
    assert choice["token_ids"] == ids[:ids.index(stop) + 1]


def test_token_ids_of_prompt_and_answer(server):
    r = server.post("/v1/chat/completions", chat(return_token_ids=True)).json()
    assert len(r["prompt_token_ids"]) == r["usage"]["prompt_tokens"] and len(r["choices"][0]["token_ids"]) == 16
    lines = [json.loads(x[6:]) for x in server.post("/v1/chat/completions", chat(return_token_ids=True, stream=True)).text.split("\n\n") if x[6:7] == "{"]
    assert lines[0]["prompt_token_ids"] == r["prompt_token_ids"]
    assert sum((x["choices"][0].get("token_ids", []) for x in lines), []) == r["choices"][0]["token_ids"]


def test_allowed_ids_bias_bad_words_and_min_tokens(server):
    r = server.post("/v1/chat/completions", chat(allowed_token_ids=[50, 51], return_token_ids=True)).json()
    assert set(r["choices"][0]["token_ids"]) <= {50, 51}
    r = server.post("/v1/chat/completions", chat(logit_bias={"77": 100}, return_token_ids=True)).json()
    assert set(r["choices"][0]["token_ids"]) == {77}
    plain = server.post("/v1/chat/completions", chat()).json()["choices"][0]["message"]["content"]
    word = plain.split()[0]
    assert word not in server.post("/v1/chat/completions", chat(bad_words=[word])).json()["choices"][0]["message"]["content"].split()
    end = 594
    r = server.post("/v1/chat/completions", chat(logit_bias={str(end): 100}, ignore_eos=False)).json()
    assert r["choices"][0]["finish_reason"] == "stop" and r["usage"]["completion_tokens"] == 1
    r = server.post("/v1/chat/completions", chat(logit_bias={str(end): 100}, ignore_eos=False, min_tokens=5)).json()
    assert r["choices"][0]["finish_reason"] == "stop" and r["usage"]["completion_tokens"] == 6


def test_prompt_logprobs(server):
    r = server.post("/v1/chat/completions", chat(prompt_logprobs=2, max_tokens=1, return_token_ids=True)).json()
    ids, logprobs = r["prompt_token_ids"], r["prompt_logprobs"]
    assert len(logprobs) == len(ids) and logprobs[0] is None
    for i, entry in zip(ids[1:], logprobs[1:]):
        assert set(entry[str(i)]) == {"logprob", "rank", "decoded_token"}
        assert 2 <= len(entry) <= 3
        assert (entry[str(i)]["rank"] <= 2) == (len(entry) == 2)


def test_the_default_length_is_what_the_context_leaves(start):
    s = start(DENSE, "--max-model-len", 64)
    r = s.post("/v1/chat/completions", {"messages": MESSAGES, "temperature": 0, "ignore_eos": True}).json()
    assert r["usage"]["total_tokens"] == 64 and r["choices"][0]["finish_reason"] == "length"
    r = s.post("/v1/chat/completions", chat(max_tokens=60))
    assert r.status_code == 400
    message = r.json()["error"]["message"]
    assert "64" in message and "60" in message
    r = s.post("/v1/chat/completions", chat("word " * 100))
    assert r.status_code == 400 and "64" in r.json()["error"]["message"]
    r = s.post("/v1/chat/completions", chat("word " * 100, truncate_prompt_tokens=-1, max_tokens=4))
    assert r.status_code == 200 and r.json()["usage"]["total_tokens"] == 64


def test_max_completion_tokens_wins_over_the_old_name(server):
    assert server.post("/v1/chat/completions", chat(max_completion_tokens=3)).json()["usage"]["completion_tokens"] == 3


def test_text_parts_are_taken_and_images_refused(server):
    parts = [{"type": "text", "text": "The quick "}, {"type": "text", "text": "brown fox"}]
    r = server.post("/v1/chat/completions", chat(parts))
    assert r.status_code == 200
    image = [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}]
    r = server.post("/v1/chat/completions", chat(image))
    assert r.status_code == 400 and "image" in r.json()["error"]["message"]


def test_template_variables_defaults_and_prefill(start):
    template = "{% for m in messages %}{{ m.role }}:{{ m.content }}|{% endfor %}{{ tone }}{{ extra }}{% if add_generation_prompt %}assistant:{% endif %}"
    s = start(DENSE, "--chat-template", template, "--default-chat-template-kwargs", '{"tone": "loud", "extra": 1}', "--trust-request-chat-template")

    def prompt(**fields):
        ids = s.post("/tokenize", {"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yes"}], **fields}).json()["tokens"]
        return s.post("/detokenize", {"tokens": ids}).json()["prompt"]

    assert prompt() == "user:hi|assistant:yes|loud1assistant:"
    assert prompt(chat_template_kwargs={"tone": "soft"}) == "user:hi|assistant:yes|soft1assistant:"
    assert prompt(add_generation_prompt=False) == "user:hi|assistant:yes|loud1"
    assert prompt(chat_template="own{{ messages|length }}") == "own2"
    assert prompt(add_generation_prompt=False, continue_final_message=True, chat_template="{% for m in messages %}<{{ m.content }}>{% endfor %}") == "<hi><yes"


def test_a_request_template_needs_the_operators_trust(server):
    r = server.post("/v1/chat/completions", chat(chat_template="{{ 1 }}"))
    assert r.status_code == 400 and "trust-request-chat-template" in r.json()["error"]["message"]


def test_a_template_that_raises_is_the_clients_error(server):
    r = server.post("/v1/chat/completions", chat(messages=[{"role": "wizard", "content": "x"}]))
    assert r.status_code == 400 and r.json()["error"]["param"] == "messages"


def test_echo_puts_the_last_message_before_the_answer(server):
    messages = [{"role": "user", "content": "Count"}, {"role": "assistant", "content": "One, two"}]
    r = server.post("/v1/chat/completions", chat(messages=messages, echo=True, add_generation_prompt=False, continue_final_message=True)).json()
    assert r["choices"][0]["message"]["content"].startswith("One, two")


def test_request_id_names_the_answer(server):
    assert server.post("/v1/chat/completions", chat(request_id="mine")).json()["id"] == "chatcmpl-mine"


def test_generation_config_gives_defaults_and_can_be_left_out(start):
    # the model's file says temperature 0.6 and top_k 20: with vllm's word the same seed draws from another distribution
    fields = {"seed": 5, "max_tokens": 24, "ignore_eos": True, "messages": MESSAGES}
    s = start()
    auto = s.post("/v1/chat/completions", fields).json()["choices"][0]["message"]["content"]
    said = s.post("/v1/chat/completions", {**fields, "temperature": 0.6, "top_k": 20, "top_p": 0.95}).json()["choices"][0]["message"]["content"]
    openai = s.post("/v1/chat/completions", {**fields, "temperature": 1, "top_k": -1, "top_p": 1}).json()["choices"][0]["message"]["content"]
    assert auto == said and auto != openai
    v = start(DENSE, "--generation-config", "vllm")
    assert v.post("/v1/chat/completions", fields).json()["choices"][0]["message"]["content"] == openai
