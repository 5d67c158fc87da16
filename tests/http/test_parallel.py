"""Many clients at once: each gets exactly what it gets alone."""
import asyncio
import json
import random
import re
import threading
import time

import openai
import pytest

import server as srv
from server import DENSE, SLOWNESS, Reader, chat, completion, request

WORDS = "the quick brown fox jumps over a lazy dog and then sleeps under an old tree by the river while rain falls".split()


def make_cases(n):
    rng = random.Random(5)
    cases = []
    for i in range(n):
        text = " ".join(rng.choice(WORDS) for _ in range(rng.choice([1, 3, 10, 40, 150])))
        sampled = {"temperature": 1.0, "seed": i} if i % 3 == 0 else {"temperature": 0}
        cases.append({"messages": [{"role": "user", "content": text}], "max_tokens": rng.choice([1, 5, 20, 60, 120]), **sampled})
    return cases


async def stream_one(client, model, case):
    text, finish = "", None
    stream = await client.chat.completions.create(model=model, stream=True, extra_body={"ignore_eos": True}, **case)
    async for chunk in stream:
        for c in chunk.choices:
            text += c.delta.content or ""
            finish = c.finish_reason or finish
    return text, finish


async def stream_all(url, model, cases, together):
    async with openai.AsyncOpenAI(base_url=url + "/v1", api_key="x", max_retries=0, timeout=120 * SLOWNESS) as client:
        if together:
            return await asyncio.gather(*(stream_one(client, model, c) for c in cases))
        return [await stream_one(client, model, c) for c in cases]


def test_32_parallel_streams_each_as_alone(server, model):
    cases = make_cases(32)
    if srv.THREADS:  # some sixty prompt tokens a second are left
        for i, c in enumerate(cases):
            c["messages"][0]["content"] = c["messages"][0]["content"][:40]
            c["max_tokens"] = 1 + i % 12
    alone = asyncio.run(stream_all(server.url, model, cases, False))
    for _ in range(1 if srv.THREADS else 2):
        together = asyncio.run(stream_all(server.url, model, cases, True))
        assert together == alone
    assert len({text for text, _ in alone}) > 16 and {finish for _, finish in alone} == {"length"}


def test_streams_and_answers_and_cancels_mixed(server, model):
    """While clients come and go, those that stay get their own text."""
    quick = srv.THREADS
    cases = make_cases(4 if quick else 12)
    alone = asyncio.run(stream_all(server.url, model, cases, False))
    stop = threading.Event()

    def nuisance(i):
        rng = random.Random(i)
        while not stop.is_set():
            with server.socket() as sock:
                sock.sendall(request("POST", "/v1/completions", completion(rng.choice(WORDS) * 20, max_tokens=2000, stream=rng.random() < 0.5, n=rng.choice([1, 3]))))
                time.sleep(rng.random() * (0.5 if quick else 0.05))

    threads = [threading.Thread(target=nuisance, args=(i,)) for i in range(2 if quick else 4)]
    for t in threads:
        t.start()
    try:
        for _ in range(1 if quick else 3):
            assert asyncio.run(stream_all(server.url, model, cases, True)) == alone
    finally:
        stop.set()
        for t in threads:
            t.join()


def test_more_sequences_than_slots_wait_their_turn(start):
    s = start(DENSE, "--max-num-seqs", 2)
    socks = [s.socket() for _ in range(10)]
    for i, sock in enumerate(socks):
        sock.sendall(request("POST", "/v1/chat/completions", chat(WORDS[i], max_tokens=20)))
    texts = [Reader(sock).response()[2] for sock in socks]
    for sock in socks:
        sock.close()
    for i, text in enumerate(texts):
        assert json.loads(text)["choices"][0]["message"]["content"] == s.post("/v1/chat/completions", chat(WORDS[i], max_tokens=20)).json()["choices"][0]["message"]["content"]


def test_a_small_cache_preempts_and_changes_nothing(start):
    cases = [completion(" ".join(WORDS[i:] + WORDS[:i]), max_tokens=400) for i in range(4)]
    roomy = start()
    want = [roomy.post("/v1/completions", c).json()["choices"][0]["text"] for c in cases]
    for limit in srv.small_limits():
        s = srv.Server(DENSE, "--memory-limit", limit, "--memory-utilization", "1", "--max-num-seqs", "4", "--max-model-len", "512", wait=False)
        try:
            s.wait_ready()
        except AssertionError:
            continue
        tokens = int(re.search(r"room for (\d+) tokens", s.log()).group(1))
        if s.get("/v1/models").json()["data"][0]["max_model_len"] < 512 or tokens >= 2048:  # too small, or nothing to fight for
            s.stop()
            continue
        socks = [s.socket() for _ in cases]
        for sock, c in zip(socks, cases):
            sock.sendall(request("POST", "/v1/completions", c))
        got = [json.loads(Reader(sock).response()[2])["choices"][0]["text"] for sock in socks]
        for sock in socks:
            sock.close()
        assert s.metrics()["num_preemptions_total"] > 0
        assert s.stop() == 0
        assert got == want
        return
    raise AssertionError("no memory limit of the list is tight")


# --- memory over a long run ---

def mixed_request(s, rng, i):
    kind = rng.randrange(8)
    if kind == 0:  # goes away
        with s.socket() as sock:
            sock.sendall(request("POST", "/v1/completions", completion(rng.choice(WORDS) * rng.randrange(1, 50), max_tokens=500, stream=rng.random() < 0.5)))
            time.sleep(rng.random() * 0.01)
        return
    if kind == 1:
        assert s.post("/v1/chat/completions", chat(temperature=-1)).status_code == 400
    elif kind == 2:
        assert s.post("/v1/completions", b'{"prompt": ').status_code == 400
    elif kind == 3:
        assert s.post("/v1/completions", completion("a" * rng.randrange(20000, 60000))).status_code in (200, 400)
    elif kind == 4:
        assert s.post("/v1/chat/completions", chat(" ".join(rng.choice(WORDS) for _ in range(rng.randrange(1, 100))), stream=True, max_tokens=rng.randrange(1, 20))).status_code == 200
    elif kind == 5:
        assert s.post("/v1/completions", completion(["x", "y"], n=2, logprobs=3, echo=True, prompt_logprobs=2, max_tokens=rng.randrange(1, 10))).status_code == 200
    elif kind == 6:
        assert s.post("/tokenize", {"prompt": "ab " * rng.randrange(1, 3000)}).status_code == 200
    else:
        assert s.post("/v1/chat/completions", chat(rng.choice(WORDS), temperature=1, stop=["e "], max_tokens=rng.randrange(1, 30))).status_code == 200


@pytest.mark.slow
@pytest.mark.parametrize("model", [DENSE, pytest.param(srv.SMOLLM2, marks=pytest.mark.skipif(not srv.SMOLLM2, reason="SHENG_SMOLLM2 is not set"))],
                         ids=["dense-small", "smollm2"])
def test_memory_is_flat_over_2000_mixed_requests(start, model):
    s = start(model, "--max-model-len", 4096 if model == DENSE else 2048, env={"SHENG_MEMORY_LIMIT": "8GiB"})
    if SLOWNESS > 1 and model != DENSE:
        pytest.skip("an instrumented program takes an hour for the real model")
    total = 2000 // SLOWNESS
    marks = []

    def worker(k):
        rng = random.Random(k)
        for i in range(total // 8 // 5):
            mixed_request(s, rng, i)

    for round_ in range(5):
        threads = [threading.Thread(target=worker, args=(round_ * 100 + k,)) for k in range(8)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        s.wait_metric("num_requests_running", 0)
        marks.append(s.rss())
        print(f"after {(round_ + 1) * total // 5} requests: {marks[-1] / 1e6:.1f} MB of its own")
    assert "ERROR" not in s.log()
    assert max(marks[2:]) <= marks[1] * 1.05 + 4e6, marks
