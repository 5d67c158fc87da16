"""Start and end of the server: what it prints, how it drains, what it refuses."""
import json
import shutil
import signal
import socket
import subprocess
import threading
import time

import httpx
import pytest

import server as srv
from server import BIN, DENSE, ROOT, SLOWNESS, Reader, completion, request

COMPLETION = "/v1/completions"


def run(*args, env=None, timeout=30):
    return subprocess.run([BIN, *map(str, args)], cwd=ROOT, env=env, capture_output=True, text=True, timeout=timeout * SLOWNESS)


def test_the_start_says_what_it_does(start):
    s = start(DENSE, "--max-num-seqs", 4, "--max-model-len", 512)
    log = s.log()
    for words in ("max-num-seqs=4", "max-model-len=512", "weights", "KV cache per token", "state per sequence", "sequences at once", "ready"):
        assert words in log, words
    assert log.index("KV cache per token") < log.index("ready")


def test_a_context_that_does_not_fit_is_shortened_and_said(start):
    for limit in srv.small_limits():  # one of them leaves room for the fixed parts and some hundreds of tokens
        s = srv.Server(DENSE, "--memory-limit", limit, "--memory-utilization", "1", "--max-num-seqs", "1", wait=False)
        try:
            s.wait_ready()
        except AssertionError:
            continue
        served = s.get("/v1/models").json()["data"][0]["max_model_len"]
        if served < 4096:
            assert f"shortened to the {served} tokens" in s.log() and "4096" in s.log()
            assert s.post(COMPLETION, completion(max_tokens=served)).status_code == 400
            assert s.post(COMPLETION, completion(max_tokens=8)).status_code == 200
            assert s.stop() == 0
            return
        s.stop()
    raise AssertionError("no limit shortened the context")


def test_health_is_503_until_warm_and_while_draining():
    s = srv.Server(srv.SMOLLM2 or DENSE, *(["--max-model-len", "512"] if srv.SMOLLM2 else []), wait=False)
    port = s.listening_port()
    seen = set()
    for _ in range(2000):
        try:
            seen.add(httpx.get(f"http://127.0.0.1:{port}/health", timeout=10).status_code)
        except httpx.TransportError:
            continue
        if 200 in seen:
            break
        r = httpx.post(f"http://127.0.0.1:{port}{COMPLETION}", json=completion(max_tokens=1), timeout=30 * SLOWNESS)
        assert r.status_code in (200, 503)
    assert 200 in seen and seen <= {200, 503}
    s.wait_ready()
    stream = s.socket()
    stream.sendall(request("POST", COMPLETION, completion(max_tokens=120 if srv.SMOLLM2 else 2000, stream=True)))
    s.wait_metric("num_requests_running", 1)
    held = s.socket()
    held.sendall(request("GET", "/health"))
    assert Reader(held).response()[0] == 200
    s.process.send_signal(signal.SIGTERM)
    deadline = time.time() + 10 * SLOWNESS
    while s.get("/health").status_code == 200:
        assert time.time() < deadline
    r = s.post(COMPLETION, completion(max_tokens=1))
    assert r.status_code == 503 and r.json()["error"]["type"] == "ServiceUnavailableError" and "retry-after" in r.headers
    status, _, body = Reader(stream).response()
    assert status == 200 and body.endswith(b"data: [DONE]\n\n")
    assert s.stop(None) == 0


def test_sigterm_lets_running_answers_finish():
    s = srv.Server()
    answers = []

    def ask():
        answers.append(s.post(COMPLETION, completion(max_tokens=300)))

    threads = [threading.Thread(target=ask) for _ in range(6)]
    for t in threads:
        t.start()
    s.wait_metric("num_requests_running", 6)
    assert s.stop() == 0
    for t in threads:
        t.join()
    assert [r.json()["usage"]["completion_tokens"] for r in answers] == [300] * 6
    assert all(r.headers["connection"] == "close" for r in answers)
    assert "stopped" in s.log()


def test_the_shutdown_timeout_cancels():
    s = srv.Server(DENSE, "--shutdown-timeout", "1")
    with s.socket() as sock:
        sock.sendall(request("POST", COMPLETION, completion(max_tokens=4000, n=8)))
        s.wait_metric("num_requests_running", 8)
        began = time.time()
        s.process.send_signal(signal.SIGINT)
        status, _, body = Reader(sock).response()
        assert status == 200 and {c["finish_reason"] for c in json.loads(body)["choices"]} == {"abort"}
    assert s.stop(None) == 0
    assert 0.9 < time.time() - began < 5 * SLOWNESS


def test_a_second_signal_ends_at_once():
    s = srv.Server()
    with s.socket() as sock:
        sock.sendall(request("POST", COMPLETION, completion(max_tokens=4000, n=8)))
        s.wait_metric("num_requests_running", 8)
        s.process.send_signal(signal.SIGTERM)
        time.sleep(0.3 * SLOWNESS)
        assert s.alive()
        assert s.stop(signal.SIGTERM, seconds=2) == -signal.SIGTERM


def test_idle_connections_do_not_hold_up_the_end():
    s = srv.Server()
    socks = [s.socket() for _ in range(50)]
    socks[0].sendall(b"GET /health HT")
    time.sleep(0.1)
    began = time.time()
    assert s.stop() == 0 and time.time() - began < 3 * SLOWNESS
    for sock in socks:
        sock.close()


def test_a_port_in_use_is_a_sentence(server):
    r = run("serve", DENSE, "--port", server.port)
    assert r.returncode == 1
    assert f"port {server.port} of 127.0.0.1 is in use" in r.stderr


def test_what_cannot_be_served_is_a_sentence_and_a_status(tmp_path):
    broken = tmp_path / "broken"
    shutil.copytree(DENSE, broken)
    weights = broken / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:100000])
    empty = tmp_path / "empty"
    empty.mkdir()
    cases = [
        (1, ["serve", "/no/such/model", "--port", "0"], "/no/such/model"),
        (1, ["serve", broken, "--port", "0"], "model.safetensors"),
        (1, ["serve", empty, "--port", "0"], "empty"),
        (2, ["serve", DENSE, "--port", "x"], "--port"),
        (2, ["serve", DENSE, "--prot", "1"], "--port"),
        (1, ["serve", DENSE, "--tensor-parallel-size", "2"], "tensor-parallel-size"),
        (1, ["serve", DENSE, "--port", "0", "--host", "256.1.1.1"], "--host"),
        (1, ["serve", DENSE, "--port", "0", "--chat-template", "/no/such/file"], "/no/such/file"),
        (1, ["serve", DENSE, "--port", "0", "--chat-template", "{% if %}"], "template"),
        (1, ["serve", DENSE, "--port", "0", "--generation-config", "/no/such/folder"], "generation-config"),
        (1, ["serve", DENSE, "--port", "0", "--quantization", "awq"], "awq"),
        (1, ["serve", DENSE, "--port", "0", "--memory-limit", "1MiB"], "memory"),
        (2, ["nonsense"], "nonsense"),
    ]
    for status, args, words in cases:
        r = run(*args)
        assert r.returncode == status, (args, r.returncode, r.stderr)
        assert words in r.stderr, (args, r.stderr)


def test_environment_variables_are_options(start):
    s = start(env={"SHENG_SERVED_MODEL_NAME": "named-by-env", "SHENG_MAX_MODEL_LEN": "300"})
    card = s.get("/v1/models").json()["data"][0]
    assert card["id"] == "named-by-env" and card["max_model_len"] == 300
    t = start(DENSE, "--max-model-len", 200, env={"SHENG_MAX_MODEL_LEN": "300"})
    assert t.get("/v1/models").json()["data"][0]["max_model_len"] == 200


def test_help_and_version():
    r = run("serve", "--help")
    assert r.returncode == 0 and "--max-model-len" in r.stdout and "SHENG_MAX_MODEL_LEN" in r.stdout
    assert run("help").stdout.count("\n") > 8
    assert run("--version").stdout.startswith("sheng ")
    assert run("help", "serve").stdout == r.stdout


def test_a_full_queue_is_503(start):
    s = start(DENSE, "--max-num-seqs", 1, "--max-num-queued-reqs", 2)
    socks = [s.socket() for _ in range(8)]
    for sock in socks:
        sock.sendall(request("POST", COMPLETION, completion(max_tokens=200)))
    statuses = [Reader(sock).response()[0] for sock in socks]
    assert set(statuses) == {200, 503} and statuses.count(200) >= 2
    for sock in socks:
        sock.close()
    assert s.metrics()["requests_rejected_total"] == statuses.count(503)


def test_the_connection_limit_waits_and_does_not_refuse(start):
    s = start(DENSE, "--max-connections", 20)
    socks = [s.socket() for _ in range(30)]
    socks[29].sendall(request("GET", "/health"))
    socks[29].settimeout(0.5)
    with pytest.raises(socket.timeout):
        socks[29].recv(100)
    for sock in socks[:15]:
        sock.close()
    socks[29].settimeout(10 * SLOWNESS)
    assert Reader(socks[29]).response()[0] == 200
    for sock in socks[15:]:
        sock.close()


def test_log_requests(start):
    s = start(DENSE, "--enable-log-requests")
    s.post(COMPLETION, completion(max_tokens=3))
    s.get("/health")
    log = s.log()
    assert "POST /v1/completions 200" in log and "3 new tokens" in log and "/health" not in log


def test_a_line_every_ten_seconds_under_load(start):
    s = start(DENSE, "--cpu", "baseline")  # with the fast kernels eight answers of 4,000 tokens are over before the line comes
    with s.socket() as sock:
        sock.sendall(request("POST", COMPLETION, completion(max_tokens=4000, n=8)))
        deadline = time.time() + 12
        while "running 8, waiting 0" not in s.log():
            assert time.time() < deadline, s.log()
            time.sleep(0.2)
    assert "tokens/s" in s.log() and "KV cache" in s.log()
