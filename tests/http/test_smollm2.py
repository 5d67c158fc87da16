"""The real model over HTTP: the reference's greedy chats, and the speed of a batch."""
import json
import threading
import time

import openai
import pytest

import server as srv
from server import ROOT, SLOWNESS

pytestmark = pytest.mark.smollm2

GOLDEN = json.loads((ROOT / "tests/golden/text/smollm2_golden.json").read_text())


@pytest.fixture(scope="module")
def smol(smollm2):
    with openai.OpenAI(base_url=smollm2.url + "/v1", api_key="x", max_retries=0, timeout=120 * SLOWNESS) as client:
        yield client


@pytest.mark.parametrize("case", GOLDEN["chat"], ids=lambda c: c["question"][:20])
def test_greedy_chats_equal_the_reference(smollm2, smol, case):
    messages = [{"role": "user", "content": case["question"]}]
    assert smollm2.post("/tokenize", {"messages": messages}).json()["tokens"] == case["prompt_ids"]
    r = smol.chat.completions.create(model="smol", messages=messages, temperature=0, max_tokens=len(case["greedy"]) + 8, extra_body={"return_token_ids": True})
    assert r.choices[0].token_ids == case["greedy"]
    assert r.choices[0].message.content == case["text"].removesuffix("<|im_end|>")
    assert r.choices[0].finish_reason == "stop"
    stream = smol.chat.completions.create(model="SmolLM2", messages=messages, temperature=0, max_tokens=len(case["greedy"]) + 8, stream=True)
    assert "".join(c.choices[0].delta.content or "" for c in stream) == r.choices[0].message.content


def test_the_chats_are_equal_in_one_batch(smol):
    answers = {}

    def ask(case):
        r = smol.chat.completions.create(model="smol", messages=[{"role": "user", "content": case["question"]}], temperature=0)
        answers[case["question"]] = r.choices[0].message.content

    threads = [threading.Thread(target=ask, args=(c,)) for c in GOLDEN["chat"]]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert answers == {c["question"]: c["text"].removesuffix("<|im_end|>") for c in GOLDEN["chat"]}


@pytest.mark.skipif(SLOWNESS > 1 or not srv.SMOLLM2, reason="it needs SHENG_SMOLLM2 and a program that is not instrumented")
def test_eight_sequences_together_are_faster_than_one(start):
    s = start(srv.SMOLLM2, "--max-model-len", "1024", env={"SHENG_MEMORY_LIMIT": "8GiB"})
    tokens = 64

    def run(n):
        began = time.time()
        r = s.post("/v1/completions", {"prompt": ["Once upon a time"] * n, "max_tokens": tokens, "ignore_eos": True, "temperature": 0})
        assert r.json()["usage"]["completion_tokens"] == n * tokens
        return n * tokens / (time.time() - began)

    run(1)
    one = max(run(1) for _ in range(3))
    eight = max(run(8) for _ in range(3))
    print(f"one {one:.1f} tokens/s, eight together {eight:.1f} tokens/s")
    assert eight >= 1.5 * one
