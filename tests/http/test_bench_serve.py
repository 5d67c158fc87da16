"""`sheng bench serve`: against sheng itself, and against a server that answers wrongly in every way."""
import csv
import json
import os
import pty
import select
import signal
import subprocess
import time

import pytest

from canned import PROMPT_TOKENS, TOKENS, Canned
from server import BIN, ROOT, SLOWNESS


def environment():
    return {k: v for k, v in os.environ.items() if not k.startswith(("SHENG_", "VLLM_", "OPENAI_"))}


def bench(url, *options, env=None, seconds=60):
    return subprocess.run([BIN, "bench", "serve", url, *map(str, options)], cwd=ROOT, env={**environment(), **(env or {})}, capture_output=True, text=True, timeout=seconds * SLOWNESS)


def result(url, *options, status=0, **kw):
    """The JSON of a run."""
    r = bench(url, *options, "--json", **kw)
    assert r.returncode == status, r.stderr
    return json.loads(r.stdout)


def row(url, *options, **kw):
    rows = result(url, *options, **kw)["rows"]
    assert len(rows) == 1
    return rows[0]


# --- Against sheng ---


def test_a_sweep_of_concurrencies(server, model, tmp_path):
    files = {kind: tmp_path / f"out.{kind}" for kind in ("csv", "html")}
    options = ("--concurrency", "1,3", "--num-prompts", 9, "--input-len", "32-64", "--output-len", 12, "--ignore-eos", "--goodput", "ttft:0.001,e2el:600000")
    out = result(server.url, *options, *(x for kind, f in files.items() for x in (f"--{kind}", f)))
    assert out["model"] == model and out["url"] == server.url and not out["interrupted"]
    assert [x["max_concurrency"] for x in out["rows"]] == [1, 3]
    for x in out["rows"]:
        assert x["completed"] == 9 and x["failed"] == 0 and x["unfinished"] == 0 and x["failures"] == {}
        assert x["total_output_tokens"] == 9 * 12 and x["without_usage"] == 0  # the server's own count
        assert 9 * 16 < x["total_input_tokens"] < 9 * 128
        assert x["peak_concurrency"] == x["max_concurrency"]
        assert x["ttft_ms"]["n"] == x["e2el_ms"]["n"] == x["tpot_ms"]["n"] == 9
        assert x["request_goodput"] == 0  # no first token in a microsecond
        for m in ("ttft_ms", "tpot_ms", "itl_ms", "e2el_ms"):
            s = x[m]
            assert 0 <= s["min"] <= s["median"] <= s["p90"] <= s["p95"] <= s["p99"] <= s["max"]
        assert x["ttft_ms"]["max"] <= x["e2el_ms"]["max"] <= x["duration"] * 1000
        assert x["output_throughput"] == pytest.approx(x["total_output_tokens"] / x["duration"])
        assert x["total_token_throughput"] == pytest.approx(x["output_throughput"] + x["input_throughput"])
    with open(files["csv"], newline="") as f:
        lines = list(csv.DictReader(f))
    assert len(lines) == 2 and float(lines[1]["p99_e2el_ms"]) == pytest.approx(out["rows"][1]["e2el_ms"]["p99"], rel=1e-5)
    page = files["html"].read_text()
    assert page.startswith("<!DOCTYPE html>") and page.count("<svg") == page.count("</svg>") == 7 and "<script" not in page and "nan" not in page
    r = bench(server.url, *options)
    assert r.returncode == 0, r.stderr
    for word in ("1 at once", "3 at once", "Request goodput", "TTFT", "TPOT", "ITL", "E2EL", "median", "p99", "good/s"):
        assert word in r.stdout


def test_an_open_loop_keeps_its_schedule_and_a_limit(server):
    x = row(server.url, "--request-rate", 25, "--num-prompts", 25, "--input-len", 16, "--output-len", 2, "--endpoint", "completions", "--seed", 5)
    assert x["completed"] == 25 and x["request_rate"] == 25 and x["started_late_ms"]["n"] == 25
    assert x["duration"] > 0.4  # 24 gaps of 40 ms in the mean, less than half of that has a chance of one in a million
    x = row(server.url, "--request-rate", "inf", "--max-concurrency", 2, "--num-prompts", 8, "--input-len", 16, "--output-len", 2)
    assert x["request_rate"] == "inf" and x["peak_concurrency"] == 2 and x["completed"] == 8


def test_a_duration_stops_the_starts_and_waits_for_the_rest(server):
    x = row(server.url, "--duration", 1.5, "--concurrency", 2, "--input-len", 16, "--output-len", 4)
    assert x["completed"] > 0 and x["unfinished"] == 0 and x["duration"] >= 1 and x["failed"] == 0


def test_prompts_of_a_file(server, tmp_path):
    f = tmp_path / "prompts.jsonl"
    f.write_text(json.dumps({"messages": [{"role": "user", "content": "The quick brown fox"}], "max_tokens": 3}) + "\n\n" + json.dumps({"prompt": "Hello", "max_tokens": 5}) + "\n")
    x = row(server.url, "--input-len", f"file:{f}", "--num-prompts", 4, "--ignore-eos")
    assert x["completed"] == 4 and x["total_output_tokens"] == 2 * (3 + 5)
    x = row(server.url, "--input-len", 8, "--output-len", f"file:{f}", "--num-prompts", 4, "--ignore-eos")
    assert x["total_output_tokens"] == 2 * (3 + 5)


def test_a_key_from_the_environment(start):
    s = start(ROOT / "tests/golden/models/dense-small", "--api-key", "sesame")
    r = bench(s.url)
    assert r.returncode == 1 and "HTTP 401" in r.stderr and "/v1/models" in r.stderr
    x = row(s.url, "--num-prompts", 2, "--input-len", 8, "--output-len", 2, env={"OPENAI_API_KEY": "sesame"})
    assert x["completed"] == 2


def test_a_model_that_is_not_there_is_said_at_once(server):
    r = bench(server.url, "--model", "nobody")
    assert r.returncode == 1 and "HTTP 404" in r.stderr and "nobody" in r.stderr


# --- Against canned answers ---


def test_what_is_sent():
    with Canned() as s:
        out = result(s.url, "--num-prompts", 6, "--input-len", 67, "--output-len", 5, "--header", "X-One: 1", "--header", "X-Two: two words", "--shared-prefix", 20,
                        "--prefix-groups", 2, "--warmup", 0, "--api-key", "k", "--concurrency", 2, "--temperature", 0.5)
        result(s.url, "--num-prompts", 6, "--input-len", 67, "--output-len", 5, "--shared-prefix", 20, "--prefix-groups", 2, "--warmup", 0)
    assert out["model"] == "canned" and out["tokens_per_word"] == 2
    assert len(s.requests) == 12
    bodies = [json.loads(b) for _, b in s.requests]
    for head, body in s.requests[:6]:
        for line in (b"X-One: 1\r\n", b"X-Two: two words\r\n", b"Authorization: Bearer k\r\n", b"POST /v1/chat/completions HTTP/1.1\r\n"):
            assert line in head + b"\r\n"
    for body in bodies[:6]:
        system, user = body["messages"]
        assert system["role"] == "system" and len(system["content"].split()) == 10
        assert user["role"] == "user" and len(user["content"].split()) == 30  # 7 tokens of template and 2 a word
        assert body["max_tokens"] == 5 and body["stream"] and body["stream_options"] == {"include_usage": True} and body["temperature"] == 0.5 and "ignore_eos" not in body
    by_text = {b["messages"][1]["content"]: b for b in bodies[:6]}
    assert len(by_text) == 6 and len({b["messages"][0]["content"] for b in bodies[:6]}) == 2
    assert [b["messages"] for b in bodies[6:]] == sorted((b["messages"] for b in bodies[:6]), key=[b["messages"] for b in bodies[6:]].index)  # the same seed: the same prompts


def test_counts_are_the_servers():
    with Canned() as s:
        x = row(s.url, "--num-prompts", 10, "--concurrency", 4)
        assert x["completed"] == 10 and x["total_input_tokens"] == 10 * PROMPT_TOKENS and x["total_output_tokens"] == 10 * TOKENS
        assert x["text_events"] == 10 * TOKENS and x["cached_input_tokens"] == 30 and x["itl_ms"]["n"] == 10 * (TOKENS - 1)
        assert s.connections <= 1 + 4  # one to see whether anybody is there, then they are kept


def test_without_usage_events_are_counted_and_it_is_said():
    with Canned("no usage") as s:
        x = row(s.url, "--num-prompts", 3)
        text = bench(s.url, "--num-prompts", 3).stdout
    assert x["completed"] == 3 and x["without_usage"] == 3 and x["total_output_tokens"] == 3 * TOKENS and x["total_input_tokens"] == 0 and "3 answers came without usage" in text


@pytest.mark.parametrize("mode", ["good", "bytes", "to the end"])
def test_right_answers_in_any_form(mode):
    with Canned(mode) as s:
        x = row(s.url, "--num-prompts", 5, "--concurrency", 2)
    assert x["completed"] == 5 and x["failed"] == 0 and x["total_output_tokens"] == 5 * TOKENS


@pytest.mark.parametrize("mode, kind, part", [
    ("503", "http_503", "the queue is full"),
    ("429 and closes", "http_429", "slow down"),
    ("closes in the head", "closed_early", "response head"),
    ("closes in the stream", "closed_early", "middle of the answer"),
    ("ends without an end", "closed_early", "finish_reason"),
    ("broken event", "bad_stream", "no JSON object"),
    ("no event", "bad_stream", "no event"),
    ("page", "bad_stream", "<html>"),
    ("json", "bad_stream", "message"),
    ("error event", "error_event", "out of pages"),
    ("not http", "bad_http", "mail.example.com"),
    ("bad chunk", "bad_http", "chunk"),
    ("silent", "timeout", "0.3 s"),
])
def test_wrong_answers_are_counted_by_kind_and_the_right_ones_still_measured(mode, kind, part):
    with Canned("good", mode) as s:
        x = row(s.url, "--num-prompts", 8, "--concurrency", 2, "--timeout", 0.3 if mode == "silent" else 60, "--warmup", 0)
    assert (x["completed"], x["failed"]) == (4, 4) and list(x["failures"]) == [kind] and x["failures"][kind]["requests"] == 4
    assert part in x["failures"][kind]["first"]
    assert x["total_output_tokens"] == 4 * TOKENS and x["ttft_ms"]["n"] == 4


def test_a_connection_that_closes_before_an_answer_is_tried_anew_only_when_it_had_carried_one():
    with Canned("closes") as s:
        r = bench(s.url, "--num-prompts", 4, "--warmup", 0, "--model", "m")
        assert r.returncode == 1 and "closed_early         4" in r.stdout and "without an answer" in r.stdout and s.served in (4, 5)  # the probes' connection was a used one
    with Canned("good", "closes") as s:  # the second and every other request comes on a used connection, and again on a new one
        x = row(s.url, "--num-prompts", 8, "--warmup", 0)
        assert x["completed"] == 8 and x["failed"] == 0 and x["resent"] == 7
    with Canned("good and closes") as s:
        x = row(s.url, "--num-prompts", 20, "--concurrency", 2, "--warmup", 0)
        assert x["completed"] == 20 and x["failed"] == 0


def test_an_answer_that_is_whole_counts_though_its_connection_hangs():
    with Canned("hangs after") as s:
        x = row(s.url, "--num-prompts", 2, "--timeout", 1, "--warmup", 0)
    assert x["completed"] == 2 and x["failed"] == 0 and x["e2el_ms"]["max"] < 1000


def test_a_server_that_dies_is_counted_and_the_run_ends():
    with Canned("good", dies_after=5) as s:
        x = row(s.url, "--num-prompts", 12, "--concurrency", 2, "--warmup", 0)
    assert x["completed"] >= 4 and x["completed"] + x["failed"] == 12 and "connect" in x["failures"] and "refused" in x["failures"]["connect"]["first"]


def test_a_warm_up_that_fails_ends_the_run_with_the_servers_words():
    with Canned("503") as s:
        r = bench(s.url, "--warmup", 2)
        assert r.returncode == 1 and "the queue is full" in r.stderr and "--warmup 0" in r.stderr
        r = bench(s.url, "--warmup", 0, "--num-prompts", 3)
        assert r.returncode == 1 and "not one request was answered" in r.stderr and "http_503" in r.stdout


@pytest.mark.parametrize("options, part", [
    (["--input-len", "0"], "LOW-HIGH"),
    (["--concurrency", "1,,x"], "--concurrency"),
    (["--request-rate", "inf", "--duration", "5"], "--num-prompts"),
    (["--goodput", "speed:5"], "ttft:200"),
    (["--shared-prefix", "5", "--input-len", "file:x"], "--shared-prefix"),
    (["--request-rate", "1,2,3,4,5,6,7,8,9", "--concurrency", "1,2,3,4,5,6,7,8"], "at most 64"),
    (["--header", "no colon"], "Name: value"),
    (["--header", "A: b", "http://127.0.0.1:1"], "before the options"),
    (["http://two"], "one argument too many"),
])
def test_options_that_make_no_sense(options, part):
    with Canned() as s:
        r = bench(s.url, *options)
    assert r.returncode == 2 and part in r.stderr and r.stderr.count("\n") == 1


def test_files_that_are_wrong_name_the_line(tmp_path):
    f = tmp_path / "p.jsonl"
    with Canned() as s:
        for text, part in (("", "no lines"), ('{"prompt": "x"}\n{"prompt": 5}\n', "line 2"), ("{\n", "line 1"), ('{"messages": []}\n', "line 1"), ('{"prompt": "x", "max_tokens": 0}', "max_tokens")):
            f.write_text(text)
            r = bench(s.url, "--input-len", f"file:{f}")
            assert r.returncode == 1 and part in r.stderr, r.stderr
        f.write_text('{"messages": [{"role": "user", "content": "x"}]}\n')
        r = bench(s.url, "--input-len", f"file:{f}", "--endpoint", "completions")
        assert r.returncode == 1 and "--endpoint chat" in r.stderr
        r = bench(s.url, "--csv", tmp_path / "no" / "x.csv")
        assert r.returncode == 1 and "x.csv" in r.stderr and not s.requests


def test_addresses_that_lead_nowhere():
    r = bench("https://localhost:1")
    assert r.returncode == 1 and "TLS" in r.stderr
    r = bench("ftp://x")
    assert r.returncode == 2 and "http://HOST:PORT" in r.stderr
    r = bench("http://127.0.0.1:1")
    assert r.returncode == 1 and "is the server started" in r.stderr


@pytest.mark.parametrize("form", ["text", "json"])
def test_control_c_shows_what_was_measured(form):
    with Canned(*["good"] * 4, "silent") as s:
        p = subprocess.Popen([BIN, "bench", "serve", s.url, "--num-prompts", "50", "--concurrency", "2,3", "--warmup", "0", *(["--json"] if form == "json" else [])], cwd=ROOT, env=environment(), stdout=subprocess.PIPE,
                             stderr=subprocess.PIPE, text=True)
        deadline = time.time() + 20 * SLOWNESS
        while s.served < 10 and time.time() < deadline:  # eight good ones, two that keep it waiting
            time.sleep(0.01)
        assert s.served == 10
        time.sleep(0.2)
        p.send_signal(signal.SIGINT)
        text, errors = p.communicate(timeout=20 * SLOWNESS)
    assert p.returncode == 1 and "interrupted" in errors
    if form == "text":
        assert "2 at once" in text and "Unfinished requests (interrupted):     2" in text
        return
    x = json.loads(text)
    assert x["interrupted"] and len(x["rows"]) == 1
    assert (x["rows"][0]["completed"], x["rows"][0]["failed"], x["rows"][0]["unfinished"]) == (8, 0, 2)


def test_a_terminal_sees_a_bar_and_a_pipe_does_not():
    with Canned("good", "silent") as s:
        assert "[" not in bench(s.url, "--num-prompts", 2, "--warmup", 0, "--timeout", 0.5).stderr
        master, slave = pty.openpty()
        p = subprocess.Popen([BIN, "bench", "serve", s.url, "--num-prompts", "2", "--warmup", "0", "--timeout", "1"], cwd=ROOT, env=environment(), stdout=subprocess.DEVNULL, stderr=slave)
        os.close(slave)
        seen = b""
        while True:
            if not select.select([master], [], [], 20 * SLOWNESS)[0]:
                break
            try:
                piece = os.read(master, 4096)
            except OSError:  # the other side is closed
                break
            seen += piece
        os.close(master)
        assert p.wait() == 0
    assert b"1 of 1 [############" in seen and b"1/2 done, 1 running, 0 failed" in seen and seen.endswith(b"\r\x1b[K")
