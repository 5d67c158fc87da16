"""POST /v1/completions with the openai client, and the token endpoints."""
import time

import pytest

from server import DENSE, completion

GREEDY = {"temperature": 0, "extra_body": {"ignore_eos": True}}
PROMPTS = ["The quick brown fox", "A", "Hello world, hello"]


def ids_of(server, text):
    return server.post("/tokenize", {"prompt": text}).json()["tokens"]


def test_an_answer_has_the_openai_shape(client, model):
    r = client.completions.create(model=model, prompt=PROMPTS[0], **GREEDY)
    assert r.id.startswith("cmpl-") and r.object == "text_completion"
    assert r.usage.completion_tokens == 16  # the default
    assert r.choices[0].finish_reason == "length" and r.choices[0].logprobs is None


def test_the_four_forms_of_a_prompt(client, model, server):
    texts = [client.completions.create(model=model, prompt=p, max_tokens=8, **GREEDY).choices[0].text for p in PROMPTS]
    ids = [ids_of(server, p) for p in PROMPTS]
    one = client.completions.create(model=model, prompt=ids[0], max_tokens=8, **GREEDY)
    assert one.choices[0].text == texts[0]
    for many in (PROMPTS, ids):
        r = client.completions.create(model=model, prompt=many, max_tokens=8, **GREEDY)
        assert [c.index for c in r.choices] == [0, 1, 2]
        assert [c.text for c in r.choices] == texts
        assert r.usage.prompt_tokens == sum(map(len, ids)) and r.usage.completion_tokens == 24


def test_choices_are_numbered_prompt_major(client, model):
    def run(prompt, **kw):
        return client.completions.create(model=model, prompt=prompt, max_tokens=8, n=2, temperature=1.3, seed=3, extra_body={"ignore_eos": True}, **kw)

    both = run(PROMPTS[:2])
    assert [c.index for c in both.choices] == [0, 1, 2, 3]
    alone = [c.text for p in PROMPTS[:2] for c in run(p).choices]
    assert [c.text for c in both.choices] == alone
    texts = [""] * 4
    for chunk in run(PROMPTS[:2], stream=True):
        for c in chunk.choices:
            texts[c.index] += c.text
    assert texts == alone


def test_a_stream_is_the_same_text(client, model):
    whole = client.completions.create(model=model, prompt=PROMPTS[0], max_tokens=24, **GREEDY)
    chunks = list(client.completions.create(
        model=model, prompt=PROMPTS[0], max_tokens=24, stream=True, stream_options={"include_usage": True}, **GREEDY))
    assert "".join(c.text for x in chunks for c in x.choices) == whole.choices[0].text
    assert chunks[-1].choices == [] and chunks[-1].usage == whole.usage
    assert [c.finish_reason for x in chunks for c in x.choices if c.finish_reason] == ["length"]


@pytest.mark.parametrize("k", [0, 2])
def test_logprobs_are_four_parallel_lists(client, model, k):
    r = client.completions.create(model=model, prompt=PROMPTS[0], max_tokens=5, logprobs=k, **GREEDY)
    lp = r.choices[0].logprobs
    assert len(lp.tokens) == len(lp.token_logprobs) == len(lp.top_logprobs) == len(lp.text_offset) == 5
    assert lp.text_offset == [sum(map(len, lp.tokens[:i])) for i in range(5)]
    for token, logprob, top in zip(lp.tokens, lp.token_logprobs, lp.top_logprobs):
        assert top[token] == logprob == max(top.values())
        assert len(top) <= max(k, 1)


def test_echo_and_its_logprobs(client, model, server):
    plain = client.completions.create(model=model, prompt=PROMPTS[0], max_tokens=4, logprobs=1, **GREEDY)
    r = client.completions.create(model=model, prompt=PROMPTS[0], max_tokens=4, logprobs=1, echo=True, **GREEDY)
    n = len(ids_of(server, PROMPTS[0]))
    lp = r.choices[0].logprobs
    assert r.choices[0].text == PROMPTS[0] + plain.choices[0].text
    assert len(lp.tokens) == n + 4 and lp.token_logprobs[0] is None and lp.top_logprobs[0] is None
    assert lp.tokens[n:] == plain.choices[0].logprobs.tokens and "".join(lp.tokens[:n]) == PROMPTS[0]
    assert lp.token_logprobs[n:] == plain.choices[0].logprobs.token_logprobs
    assert lp.text_offset[n] == len(PROMPTS[0])


def test_scoring_a_text_without_generating(client, model, server):
    r = client.completions.create(model=model, prompt=PROMPTS, max_tokens=0, logprobs=1, echo=True, **GREEDY)
    assert [c.text for c in r.choices] == PROMPTS
    assert r.usage.completion_tokens == 0
    for c in r.choices:
        assert c.finish_reason == "length"
        assert len(c.logprobs.tokens) == len(ids_of(server, c.text))
    full = client.completions.create(model=model, prompt=PROMPTS[0], max_tokens=2, logprobs=1, echo=True, **GREEDY).choices[0].logprobs
    assert r.choices[0].logprobs.token_logprobs == full.token_logprobs[:-2]
    bare = client.completions.create(model=model, prompt=PROMPTS[0], max_tokens=0, echo=True, **GREEDY)
    assert bare.choices[0].text == PROMPTS[0] and bare.choices[0].logprobs is None


def test_echo_in_a_stream_comes_first_and_once(client, model):
    whole = client.completions.create(model=model, prompt=PROMPTS[:2], max_tokens=6, echo=True, logprobs=1, **GREEDY)
    texts, tokens = ["", ""], [[], []]
    for chunk in client.completions.create(model=model, prompt=PROMPTS[:2], max_tokens=6, echo=True, logprobs=1, stream=True, **GREEDY):
        for c in chunk.choices:
            texts[c.index] += c.text
            tokens[c.index] += c.logprobs.tokens
    assert texts == [c.text for c in whole.choices]
    assert tokens == [c.logprobs.tokens for c in whole.choices]


def test_echo_of_ids_is_their_text(client, model, server):
    r = client.completions.create(model=model, prompt=ids_of(server, PROMPTS[2]), max_tokens=1, echo=True, **GREEDY)
    assert r.choices[0].text.startswith(PROMPTS[2])


def test_prompt_logprobs_and_token_ids(server):
    r = server.post("/v1/completions", completion(["ab", "The fox"], prompt_logprobs=0, return_token_ids=True, max_tokens=2)).json()
    for choice, text in zip(r["choices"], ["ab", "The fox"]):
        assert choice["prompt_token_ids"] == ids_of(server, text)
        assert len(choice["prompt_logprobs"]) == len(choice["prompt_token_ids"])
        assert len(choice["token_ids"]) == 2
        for i, entry in zip(choice["prompt_token_ids"][1:], choice["prompt_logprobs"][1:]):
            assert list(entry) == [str(i)]


def test_a_one_token_prompt_has_one_null(server):
    r = server.post("/v1/completions", completion([[70]], prompt_logprobs=1, echo=True, logprobs=1, max_tokens=1)).json()["choices"][0]
    assert r["prompt_logprobs"] == [None]
    assert r["logprobs"]["token_logprobs"][0] is None and len(r["logprobs"]["tokens"]) == 2


def test_truncation_keeps_the_last_tokens(server):
    ids = ids_of(server, PROMPTS[2])
    r = server.post("/v1/completions", completion(PROMPTS[2], truncate_prompt_tokens=3, return_token_ids=True)).json()
    assert r["choices"][0]["prompt_token_ids"] == ids[-3:]
    assert r["choices"][0]["text"] == server.post("/v1/completions", completion(ids[-3:])).json()["choices"][0]["text"]


def test_skip_special_tokens(server):
    forced = completion(logit_bias={"605": 100}, max_tokens=2)
    assert server.post("/v1/completions", forced).json()["choices"][0]["text"] == ""
    text = server.post("/v1/completions", {**forced, "skip_special_tokens": False}).json()["choices"][0]["text"]
    assert text == "<|extra_605|><|extra_605|>"


def test_tokens_as_ids(server):
    r = server.post("/v1/completions", completion(logprobs=1, max_tokens=2, return_tokens_as_token_ids=True, return_token_ids=True)).json()["choices"][0]
    assert r["logprobs"]["tokens"] == [f"token_id:{i}" for i in r["token_ids"]]


def test_penalties_change_the_answer(server):
    plain = server.post("/v1/completions", completion(max_tokens=32, return_token_ids=True)).json()["choices"][0]["token_ids"]
    punished = server.post("/v1/completions", completion(max_tokens=32, return_token_ids=True, frequency_penalty=2, presence_penalty=2)).json()["choices"][0]["token_ids"]
    assert len(set(punished)) > len(set(plain))


# --- tokenize, detokenize, models ---

def test_tokenize_and_back(server):
    text = "Hello, wörld! 你好\n"
    r = server.post("/tokenize", {"prompt": text, "return_token_strs": True}).json()
    assert r["count"] == len(r["tokens"]) == len(r["token_strs"]) and r["max_model_len"] == 4096
    assert server.post("/detokenize", {"tokens": r["tokens"]}).json() == {"prompt": text}
    assert server.post("/tokenize", {"prompt": text}).json()["token_strs"] is None


def test_tokenize_messages_counts_what_a_chat_counts(server):
    messages = [{"role": "user", "content": "The quick brown fox"}]
    n = server.post("/tokenize", {"messages": messages}).json()["count"]
    r = server.post("/v1/chat/completions", {"messages": messages, "max_tokens": 1, "temperature": 0}).json()
    assert r["usage"]["prompt_tokens"] == n


def test_models_and_names(start):
    s = start(DENSE, "--served-model-name", "alpha", "org/beta")
    cards = s.get("/v1/models").json()["data"]
    assert [c["id"] for c in cards] == ["alpha", "org/beta"]
    assert all(c["object"] == "model" and c["max_model_len"] == 4096 for c in cards)
    assert s.get("/v1/models/org/beta").json()["id"] == "org/beta"
    assert s.get("/v1/models/org%2Fbeta").json()["id"] == "org/beta"
    assert s.get("/v1/models/gamma").status_code == 404
    for name in ("alpha", "org/beta"):
        assert s.post("/v1/completions", completion(model=name, max_tokens=1)).json()["model"] == "alpha"
    r = s.post("/v1/completions", completion(model="gamma"))
    assert r.status_code == 404 and r.json()["error"] == {
        "message": "The model `gamma` does not exist.", "type": "NotFoundError", "param": "model", "code": 404}


def test_small_endpoints(server):
    assert server.get("/health").status_code == 200 and server.get("/health").content == b""
    assert server.get("/ping").status_code == 200
    assert set(server.get("/version").json()) == {"version"}
    m = server.get("/metrics")
    assert m.headers["content-type"].startswith("text/plain")
    assert "vllm:num_requests_running{" in m.text


def test_metrics_count(start):
    s = start()
    s.post("/v1/completions", completion("A", max_tokens=1))
    time.sleep(0.2)
    before = s.metrics()
    s.post("/v1/completions", completion("A", n=2, max_tokens=5))
    s.wait_metric("generation_tokens_total", before["generation_tokens_total"] + 10)  # counted at the end of the step
    after = s.metrics()
    assert after["request_success_total"] - before["request_success_total"] == 2
    assert after["prompt_tokens_total"] > before["prompt_tokens_total"]
    s.wait_metric("kv_cache_usage_perc", 0)
