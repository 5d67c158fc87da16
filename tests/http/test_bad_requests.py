"""What a client can get wrong: always a 4xx in the one JSON shape, never a 500, never a dead server."""
import json
import time

import openai
import pytest

from server import DENSE, SLOWNESS, chat, completion, request, Reader

CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"
MESSAGE = '"messages":[{"role":"user","content":"x"}],"max_tokens":1'


def check_error(r, status=400, param=...):
    assert r.status_code == status, (r.status_code, r.text)
    body = r.json()
    assert set(body) == {"error"} and set(body["error"]) == {"message", "type", "param", "code"}
    assert body["error"]["code"] == status and len(body["error"]["message"]) > 8
    if status == 400:
        assert body["error"]["type"] == "BadRequestError"
    if param is not ...:
        assert body["error"]["param"] == param, body
    return body["error"]["message"]


BODIES = {
    "empty": b"",
    "not json": b"hello",
    "half": b'{"messages": [',
    "two values": b"{} {}",
    "array": b"[]",
    "string": b'"x"',
    "null": b"null",
    "nan": b'{"temperature": NaN, %s}' % MESSAGE.encode(),
    "infinity": b'{"temperature": Infinity, %s}' % MESSAGE.encode(),
    "1e999": b'{"temperature": 1e999, %s}' % MESSAGE.encode(),
    "huge integer": b'{"seed": 99999999999999999999999999, %s}' % MESSAGE.encode(),
    "deep": b'{"x": ' + b"[" * 100000 + b"]" * 100000 + b", " + MESSAGE.encode() + b"}",
    "deep objects": b'{"x": ' + b'{"a":' * 5000 + b"1" + b"}" * 5000 + b", " + MESSAGE.encode() + b"}",
    "invalid utf-8": b'{"messages":[{"role":"user","content":"\xff\xfe"}],"max_tokens":1}',
    "overlong utf-8": b'{"messages":[{"role":"user","content":"\xc0\x80"}],"max_tokens":1}',
    "encoded surrogate": b'{"messages":[{"role":"user","content":"\xed\xa0\x80"}],"max_tokens":1}',
    "control character": b'{"messages":[{"role":"user","content":"\x01"}],"max_tokens":1}',
    "byte order mark": b"\xef\xbb\xbf{" + MESSAGE.encode() + b"}",
}


@pytest.mark.parametrize("name", BODIES)
def test_bodies_that_are_not_json_objects(server, name):
    numbers = name in ("1e999", "huge integer")  # they are JSON
    for path in (CHAT,) if numbers else (CHAT, COMPLETION, "/tokenize", "/detokenize"):
        check_error(server.post(path, BODIES[name]))


def test_lone_surrogates_are_not_a_fault_of_the_server(server):
    for text in (r"\ud800", r"\udc00 x", r"\ud800\ud800", r"a\ud83d"):
        r = server.post(CHAT, '{"messages":[{"role":"user","content":"%s"}],"max_tokens":1,"ignore_eos":true}' % text)
        assert r.status_code in (200, 400)
        r = server.post(COMPLETION, '{"prompt":"%s","stop":"%s","max_tokens":1}' % (text, text))
        assert r.status_code in (200, 400)


def test_nul_characters_are_text(server):
    assert server.post(CHAT, chat("a\0b", max_tokens=1)).status_code == 200
    assert server.post(COMPLETION, completion("a\0b", stop="\0", max_tokens=1)).status_code == 200


FIELDS = [
    ("temperature", "hot"), ("temperature", -1), ("temperature", True), ("temperature", [1]), ("temperature", {}), ("top_p", 0), ("top_p", 2), ("top_p", "1"),
    ("top_k", -2), ("top_k", 0.5), ("min_p", 2), ("n", 0), ("n", 1000), ("n", -1), ("n", "1"), ("n", 1e300), ("max_tokens", -1), ("max_tokens", 1e12),
    ("max_tokens", "5"), ("max_tokens", 0), ("min_tokens", 17), ("presence_penalty", 3), ("frequency_penalty", -2.1), ("repetition_penalty", 0), ("seed", 1.5),
    ("seed", "a"), ("stop", 1), ("stop", [1]), ("stop", [""]), ("stop", ""), ("stop", {"a": 1}), ("stop", ["a"] * 257), ("stop", ["a" * 16000] * 5), ("bad_words", ["a"] * 1025), ("stop_token_ids", [10**9]), ("stop_token_ids", [-1]),
    ("stop_token_ids", ["a"]), ("stop_token_ids", 5), ("logit_bias", {"640": 1}), ("logit_bias", {"a": 1}), ("logit_bias", {"1": None}),
    ("logit_bias", {"1": "x"}), ("logit_bias", [1]), ("allowed_token_ids", []), ("allowed_token_ids", [640]), ("bad_words", [""]), ("bad_words", 5),
    ("prompt_logprobs", 21), ("prompt_logprobs", -1), ("stream", "yes"), ("stream", 1), ("stream_options", {"include_usage": True}), ("echo", 1),
    ("skip_special_tokens", "no"), ("truncate_prompt_tokens", 0), ("truncate_prompt_tokens", -2), ("best_of", 2), ("use_beam_search", True),
    ("structured_outputs", {"json": {}}), ("guided_json", {}), ("guided_regex", "a"), ("guided_choice", ["a"]), ("response_format", {"type": "json_object"}),
    ("response_format", "json"), ("logits_processors", ["x"]), ("kv_transfer_params", {"a": 1}), ("priority", 3), ("repetition_detection", {"a": 1}),
    ("model", 5), ("model", ["a"]), ("request_id", 5),
]


@pytest.mark.parametrize("path,body", [(CHAT, chat()), (COMPLETION, completion())], ids=["chat", "completion"])
def test_fields_of_the_wrong_type_or_range(server, path, body):
    for name, value in FIELDS:
        r = server.post(path, {**body, name: value})
        try:
            check_error(r, 400, name)
        except AssertionError:
            print(name, value)
            raise


CHAT_FIELDS = [
    ("top_logprobs", 3), ("logprobs", 1), ("max_completion_tokens", 0), ("tools", []), ("tools", [{"type": "function", "function": {"name": "f"}}]),
    ("tool_choice", "required"), ("tool_choice", {"type": "function", "function": {"name": "f"}}), ("functions", [{"name": "f"}]), ("function_call", {"name": "f"}),
    ("audio", {"voice": "x", "format": "wav"}), ("modalities", ["audio"]), ("thinking_token_budget", 10), ("chat_template", "{{ x }}"), ("chat_template_kwargs", [1]),
    ("continue_final_message", True), ("reasoning_effort", "enormous"), ("messages", []), ("messages", {}), ("messages", "hi"), ("messages", [5]),
    ("messages", [{}]), ("messages", [{"role": "user", "content": 5}]), ("messages", [{"role": 5, "content": "x"}]), ("messages", None),
    ("messages", [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://x/y.png"}}]}]),
]


def test_fields_of_chats(server):
    for name, value in CHAT_FIELDS:
        r = server.post(CHAT, {**chat(), name: value})
        try:
            check_error(r, 400, name)
        except AssertionError:
            print(name, value)
            raise
    check_error(server.post(CHAT, {"max_tokens": 1}), 400, "messages")


def test_fields_of_completions(server):
    for name, value in [("logprobs", 21), ("logprobs", True), ("suffix", "x"), ("prompt", []), ("prompt", 5), ("prompt", {}), ("prompt", [None]), ("prompt", [640]),
                        ("prompt", [-1]), ("prompt", [1.5]), ("prompt", [[]]), ("prompt", [[1], "a", 5]), ("prompt", [["a"]]), ("prompt", ["", ""]), ("prompt", ""),
                        ("prompt", [1, "a"]), ("prompt", None), ("prompt_embeds", "AA==")]:
        r = server.post(COMPLETION, {**completion(), name: value})
        try:
            check_error(r, 400, name)
        except AssertionError:
            print(name, value)
            raise
    check_error(server.post(COMPLETION, {"max_tokens": 1}), 400, "prompt")
    check_error(server.post(COMPLETION, completion(["a"] * 100, n=128)), 400, "n")


EXCLUDED = "every token is excluded by the request's parameters"


@pytest.mark.parametrize("path,body", [(CHAT, chat()), (COMPLETION, completion())], ids=["chat", "completion"])
def test_parameters_that_exclude_every_token_are_the_fault_of_the_request(server, path, body):
    word = server.post("/tokenize", {"prompt": "x"}).json()["tokens"]
    for fields in ({"allowed_token_ids": [592, 594], "min_tokens": 3, "ignore_eos": False}, {"allowed_token_ids": word, "bad_words": ["x"]},
                   {"allowed_token_ids": [65], "stop_token_ids": [65], "min_tokens": 1}):
        for stream in (False, True):
            message = check_error(server.post(path, {**body, **fields, "stream": stream, "n": 2}), 400, None)
            assert message == EXCLUDED


def test_a_stream_that_runs_out_of_tokens_says_so(server):
    token = server.post("/tokenize", {"prompt": "x"}).json()["tokens"]
    word = "x" * 100  # more tokens than the server holds back: the stream has begun before its end
    assert server.post("/tokenize", {"prompt": word}).json()["tokens"] == token * 100
    body = completion(allowed_token_ids=token, bad_words=[word], max_tokens=128, stream=True)
    lines = [x.removeprefix("data: ") for x in server.post(COMPLETION, body).text.split("\n\n") if x]
    assert lines[-1] == "[DONE]"
    assert "".join(json.loads(x)["choices"][0]["text"] for x in lines[:-2]) == "x" * 99
    error = json.loads(lines[-2])["error"]
    assert error["code"] == 400 and error["type"] == "BadRequestError" and error["message"] == EXCLUDED


def test_extreme_numbers_are_no_fault_of_the_model(server):
    for fields in ({"repetition_penalty": 1e-44}, {"repetition_penalty": 1e-300}, {"repetition_penalty": 1e6}, {"temperature": 1.1e-5}, {"temperature": 1e6},
                   {"temperature": 1e-300}, {"top_p": 1e-300}, {"min_p": 1e-300}, {"logit_bias": {str(i): 1e300 for i in range(0, 640, 2)}}):
        for more in ({}, {"repetition_penalty": 1e-44, "temperature": 1.1e-5, "presence_penalty": -2, "frequency_penalty": -2}):
            r = server.post(COMPLETION, completion(**{"temperature": 1, "seed": 1, "max_tokens": 4, **more, **fields}))
            assert r.status_code == 200 and r.json()["usage"]["completion_tokens"] == 4, (fields, r.text)


def test_a_hundred_thousand_template_variables_hold_up_nobody(start):
    s = start(DENSE, "--default-chat-template-kwargs", '{"enable_thinking": true, "k7": 1}')
    many = ",".join('"k%d":%d' % (i % 90000, i) for i in range(100000))
    for path in (CHAT, "/tokenize"):
        began = time.monotonic()
        r = s.post(path, '{%s,"chat_template_kwargs":{%s}}' % (MESSAGE, many))
        assert r.status_code in (200, 400), r.text
        assert time.monotonic() - began < 5 * SLOWNESS
    s.stop()


def test_the_last_of_equal_template_variables_counts(start, tmp_path):
    template = tmp_path / "t.jinja"
    template.write_text("{{ a }} {{ b }} {{ c }}{% for m in messages %}{% endfor %}")
    s = start(DENSE, "--chat-template", template, "--default-chat-template-kwargs", '{"a": "default", "b": "default", "c": "default"}')
    r = s.post("/tokenize", '{"messages":[{"role":"user","content":"x"}],"chat_template_kwargs":{"a":"first","b":"own","a":"last","c\\u0000":"other"}}')
    text = s.post("/detokenize", {"tokens": r.json()["tokens"]}).json()["prompt"]
    assert text == "last own default"
    s.stop()


def test_token_endpoints(server):
    check_error(server.post("/tokenize", {}), 400, "prompt")
    check_error(server.post("/tokenize", {"prompt": 5}), 400, "prompt")
    check_error(server.post("/tokenize", {"messages": []}), 400, "messages")
    for tokens in (None, "x", [1, "a"], [640], [-1], [1e99], {}):
        check_error(server.post("/detokenize", {"tokens": tokens}), 400, "tokens")
    check_error(server.post("/tokenize", {"prompt": "x", "model": "stranger"}), 404, "model")


def test_harmless_values_of_known_fields_pass(server):
    r = server.post(CHAT, chat(max_tokens=1, tools=None, tool_choice="none", response_format={"type": "text"}, structured_outputs=None, guided_json=None,
                               use_beam_search=False, logit_bias=None, stop=None, user="u", parallel_tool_calls=True, metadata={"a": "b"}, store=False,
                               service_tier="auto", stream_options=None, best_of=1, temperature=None, priority=0))
    assert r.status_code == 200, r.text
    assert server.post(COMPLETION, completion(max_tokens=1, suffix=None, best_of=None, logprobs=None, user="u")).status_code == 200


def test_unknown_fields_are_ignored_with_a_log_line(start):
    s = start()
    assert s.post(CHAT, chat(max_tokens=1, frobnicate=3)).status_code == 200
    assert "frobnicate" in s.log()
    assert s.post(CHAT, chat(max_tokens=1, **{"x\n2030-01-01 forged": 1})).status_code == 200
    assert not any(line.startswith("2030") for line in s.log().splitlines())


def test_huge_prompts(server):
    check_error(server.post(COMPLETION, completion("a" * 10_000_000)), 400)
    check_error(server.post(COMPLETION, completion([70] * 1_000_000)), 400)
    check_error(server.post(CHAT, chat("x " * 2_000_000)), 400)
    r = server.post(COMPLETION, json.dumps(completion()).encode() + b" " * 10_000_000)
    assert r.status_code == 200


def test_both_numbers_when_it_is_too_long(server):
    message = check_error(server.post(COMPLETION, completion(max_tokens=4095)))
    assert "4096" in message and "4095" in message


def test_unknown_model_path_and_method(server):
    check_error(server.post(CHAT, chat(model="gpt-9")), 404, "model")
    check_error(server.get("/v1/nothing"), 404)
    check_error(server.get("/v1/models/x"), 404)
    check_error(server.get("/"), 404)
    check_error(server.post("/v1/embeddings", {"input": "x"}), 404)
    for path, allow in ((CHAT, "POST"), (COMPLETION, "POST"), ("/tokenize", "POST")):
        r = server.get(path)
        check_error(r, 405)
        assert r.headers["allow"] == allow
    r = server.post("/v1/models", {})
    check_error(r, 405)
    assert r.headers["allow"] == "GET,HEAD"


def test_the_openai_client_raises_its_own_errors(client, model):
    with pytest.raises(openai.BadRequestError) as e:
        client.chat.completions.create(model=model, messages=[], max_tokens=1)
    assert e.value.param == "messages" and int(e.value.code) == 400
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="stranger", messages=[{"role": "user", "content": "x"}])
    with pytest.raises(openai.BadRequestError):
        client.completions.create(model=model, prompt="x", temperature=-1)


def test_api_keys(start):
    s = start(env={"SHENG_API_KEY": "one", "VLLM_API_KEY": "two"})
    for headers in ({}, {"Authorization": "Bearer three"}, {"Authorization": "one"}, {"x-api-key": "on"}, {"Authorization": "Bearer"}):
        for path in ("/v1/models", "/v1/nothing", "/tokenize"):
            r = s.get(path, headers=headers)
            assert r.status_code == 401 and r.json() == {"error": "Unauthorized"}
    for headers in ({"Authorization": "Bearer one"}, {"authorization": "bearer two"}, {"x-api-key": "two"}):
        assert s.get("/v1/models", headers=headers).status_code == 200
    for path in ("/health", "/version", "/metrics", "/ping"):
        assert s.get(path).status_code == 200
    assert "one" not in [word for line in s.log().splitlines() for word in line.split()]
    t = start(srv_model(), "--api-key", "k1", "k2")
    with openai.OpenAI(base_url=t.url + "/v1", api_key="k2", max_retries=0) as c:
        assert c.models.list().data
    with openai.OpenAI(base_url=t.url + "/v1", api_key="k3", max_retries=0) as c, pytest.raises(openai.AuthenticationError):
        c.models.list()


def srv_model():
    from server import DENSE
    return DENSE


def test_a_refusal_keeps_the_connection(server):
    with server.socket() as sock:
        reader = Reader(sock)
        for _ in range(3):
            sock.sendall(request("POST", "/v1/nothing", {"a": 1}) + request("GET", CHAT) + request("POST", CHAT, b"{") + request("GET", "/health"))
            assert [reader.response()[0] for _ in range(4)] == [404, 405, 400, 200]
