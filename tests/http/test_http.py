"""The HTTP layer from below: connections, framing, limits, slow and vanishing clients."""
import json
import re
import socket
import struct
import threading
import time

import pytest

from server import DENSE, SLOWNESS, Reader, chat, completion, read_all, request

CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"


def reset(sock):
    """Closes with a RST."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


def test_keep_alive_serves_many_requests(server):
    with server.socket() as sock:
        reader = Reader(sock)
        for i in range(20):
            sock.sendall(request("POST", COMPLETION, completion(max_tokens=1 + i % 3, stream=i % 2 == 1)))
            assert reader.response()[0] == 200


def test_pipelined_requests_are_answered_in_order(server):
    with server.socket() as sock:
        lengths = [5, 1, 9, 2, 7, 3]
        sock.sendall(b"".join(request("POST", COMPLETION, completion(max_tokens=n)) for n in lengths) + request("GET", "/version"))
        reader = Reader(sock)
        answers = [json.loads(reader.response()[2]) for _ in lengths]
        assert [a["usage"]["completion_tokens"] for a in answers] == lengths
        assert "version" in json.loads(reader.response()[2])


def test_five_hundred_pipelined_requests(server):
    with server.socket() as sock:
        threading.Thread(target=sock.sendall, args=(request("GET", "/health") * 500,)).start()
        reader = Reader(sock)
        assert all(reader.response()[0] == 200 for _ in range(500))


def test_a_request_may_come_byte_by_byte(server):
    data = request("POST", COMPLETION, completion(max_tokens=2))
    with server.socket() as sock:
        for i in range(len(data)):
            sock.sendall(data[i:i + 1])
        assert Reader(sock).response()[0] == 200


@pytest.mark.parametrize("size", [1, 7, 100000])
def test_chunked_bodies(server, size):
    body = json.dumps(completion(max_tokens=3)).encode()
    chunks = b"".join(b"%x;ext=1\r\n%s\r\n" % (len(body[i:i + size]), body[i:i + size]) for i in range(0, len(body), size))
    with server.socket() as sock:
        sock.sendall(request("POST", COMPLETION, b"", Transfer_Encoding="chunked") + chunks + b"0\r\nTrailer: x\r\n\r\n" + request("GET", "/health"))
        reader = Reader(sock)
        status, _, answer = reader.response()
        assert status == 200 and json.loads(answer)["usage"]["completion_tokens"] == 3
        assert reader.response()[0] == 200


@pytest.mark.parametrize("chunk", [b"zz\r\n", b"5 5\r\nhello\r\n0\r\n\r\n", b"5\rfoo\nhello\r\n0\r\n\r\n"])
def test_broken_chunks_are_400(server, chunk):
    out = server.raw(request("POST", COMPLETION, b"", Transfer_Encoding="chunked") + chunk)
    assert out.startswith(b"HTTP/1.1 400 ") and b'"error"' in out


def test_expect_100_continue(server):
    body = json.dumps(completion(max_tokens=1)).encode()
    with server.socket() as sock:
        reader = Reader(sock)
        sock.sendall(request("POST", COMPLETION, Expect="100-continue", Content_Length=len(body)))
        assert reader.response()[0] == 100
        sock.sendall(body)
        assert reader.response()[0] == 200


def test_expect_100_is_refused_before_the_body(server):
    for path, length, status in ((COMPLETION, 1 << 40, 413), ("/v1/nothing", 5, 404)):
        with server.socket() as sock:
            sock.sendall(request("POST", path, Expect="100-continue", Content_Length=length))
            got, headers, _ = Reader(sock).response()
            assert got == status and headers["connection"] == "close"


def test_body_limit(start):
    s = start(DENSE, "--max-body-size", "64KiB")
    big = json.dumps(completion("x" * 100000)).encode()
    for out in (s.raw(request("POST", COMPLETION, big)),
                s.raw(request("POST", COMPLETION, b"", Transfer_Encoding="chunked") + b"1ffff\r\n" + b"x" * 0x1ffff + b"\r\n0\r\n\r\n")):
        assert out.startswith(b"HTTP/1.1 413 ")
        error = json.loads(out.split(b"\r\n\r\n", 1)[1])["error"]
        assert error["code"] == 413 and "65536" in error["message"]
    assert s.post(COMPLETION, completion("x" * 3000, max_tokens=1)).status_code == 200


def test_the_default_body_limit_is_32_mib(server):
    with server.socket() as sock:
        sock.sendall(request("POST", COMPLETION, Content_Length=(32 << 20) + 1))
        assert Reader(sock).response()[0] == 413
    with server.socket() as sock:
        reader = Reader(sock)
        sock.sendall(request("POST", COMPLETION, Content_Length=32 << 20, Expect="100-continue"))
        assert reader.response()[0] == 100


def test_header_limits(server):
    assert server.raw(request("GET", "/health", X="y" * 70000)).startswith(b"HTTP/1.1 431 ")
    assert server.raw(b"GET /" + b"a" * 70000).startswith(b"HTTP/1.1 431 ")
    many = {f"X{i}": "y" for i in range(150)}
    assert server.raw(request("GET", "/health", **many)).startswith(b"HTTP/1.1 431 ")
    assert server.get("/health", headers={"X": "y" * 60000}).status_code == 200


@pytest.mark.parametrize("bytes_,status", [
    (b"nonsense\r\n\r\n", 400), (b"GET / HTTP/3.0\r\n\r\n", 505), (b"GET /health HTTP/1.1\r\n\r\n", 400),
    (b"POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
    (b"POST /tokenize HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip\r\n\r\n", 501), (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400),
    (b"POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n", 400),
])
def test_malformed_requests_get_json_and_the_end(server, bytes_, status):
    out = server.raw(bytes_)
    assert out.startswith(b"HTTP/1.1 %d " % status)
    head, body = out.split(b"\r\n\r\n", 1)
    error = json.loads(body)["error"]
    assert error["code"] == status and (error["type"] == "InternalServerError") == (status == 500)
    assert b"connection: close" in head.lower() and b"content-type: application/json" in head.lower()


def test_http_1_0(server):
    body = json.dumps(completion(max_tokens=2)).encode()
    out = server.raw(b"POST /v1/completions HTTP/1.0\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
    assert out.startswith(b"HTTP/1.1 200 ") and json.loads(out.split(b"\r\n\r\n", 1)[1])["usage"]["completion_tokens"] == 2
    body = json.dumps(completion(max_tokens=2, stream=True)).encode()
    out = server.raw(b"POST /v1/completions HTTP/1.0\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
    assert out.endswith(b"data: [DONE]\n\n") and b"chunked" not in out


def test_head_has_no_body(server):
    with server.socket() as sock:
        sock.sendall(request("HEAD", "/v1/models") + request("GET", "/health"))
        time.sleep(0.3 * SLOWNESS)
        out = sock.recv(65536)
        assert out.count(b"HTTP/1.1 200 OK") == 2 and b'"object"' not in out
        assert int(re.search(rb"Content-Length: (\d+)", out).group(1)) > 50


def test_a_thousand_idle_connections(server):
    socks = [server.socket() for _ in range(1000)]
    try:
        half = request("POST", COMPLETION, completion(max_tokens=1))
        for i, sock in enumerate(socks):
            if i % 2:
                sock.sendall(half[:30])  # half a head, and then silence
        began = time.time()
        assert server.post(COMPLETION, completion(max_tokens=4)).status_code == 200
        assert time.time() - began < 5 * SLOWNESS
        for i in (0, 1, 500, 501, 998, 999):
            socks[i].sendall(half[30:] if i % 2 else half)
            assert Reader(socks[i]).response()[0] == 200
    finally:
        for sock in socks:
            sock.close()


# --- clients that go away ---

LONG = {"max_tokens": 4000}


@pytest.mark.parametrize("stream", [False, True], ids=["waiting", "streaming"])
@pytest.mark.parametrize("close", [socket.socket.close, reset], ids=["fin", "rst"])
def test_a_client_that_hangs_up_is_cancelled_within_a_step(server, stream, close):
    before = server.metrics()["requests_cancelled_total"]
    sock = server.socket()
    sock.sendall(request("POST", COMPLETION, completion(n=4, stream=stream, **LONG)))
    server.wait_metric("num_requests_running", 4)
    began = time.time()
    close(sock)
    ended = server.wait_metric("num_requests_running", 0)
    assert ended - began < 0.5 * SLOWNESS
    server.wait_metric("requests_cancelled_total", before + 1)
    server.wait_metric("kv_cache_usage_perc", 0)


def test_a_hang_up_is_seen_behind_pipelined_bytes(server):
    sock = server.socket()
    sock.sendall(request("POST", COMPLETION, completion(**LONG)))
    server.wait_metric("num_requests_running", 1)
    sock.sendall(request("GET", "/health") * 100_000)
    assert server.metrics()["num_requests_running"] == 1
    sock.close()
    server.wait_metric("num_requests_running", 0, 5)


def test_a_client_that_sends_too_far_ahead_is_cut_off(start):
    s = start(DENSE, "--max-body-size", "64KiB")
    with s.socket() as sock:
        sock.sendall(request("POST", COMPLETION, completion(**LONG)))
        s.wait_metric("num_requests_running", 1)
        try:
            sock.sendall(b"x" * (8 << 20))
        except OSError:
            pass
        s.wait_metric("num_requests_running", 0, 5)
    assert s.post(COMPLETION, completion()).status_code == 200


def test_hang_up_while_the_text_is_being_read(server):
    body = json.dumps(completion("a" * 5_000_000)).encode()
    for _ in range(5):
        sock = server.socket()
        sock.sendall(request("POST", COMPLETION, body))
        sock.close()
    assert server.get("/health").status_code == 200


def test_hang_up_in_the_middle_of_a_body(server):
    for cut in (10, 60, 150):
        with server.socket() as sock:
            sock.sendall(request("POST", COMPLETION, completion())[:cut])
    assert server.get("/health").status_code == 200


def wait_parked(s, n):
    """Until the sequences stand still: ring, output buffer and socket are full. Returns the tokens generated so far."""
    deadline = time.time() + 60 * SLOWNESS
    last = -1
    while True:
        m = s.metrics()
        if m["num_requests_parked"] == n and m["generation_tokens_total"] == last:
            return last
        assert time.time() < deadline, m
        last = m["generation_tokens_total"]
        time.sleep(0.5 * SLOWNESS)


def test_a_slow_reader_is_parked_and_stalls_nobody(start):
    s = start()
    s.post(COMPLETION, completion(max_tokens=1))
    before = s.metrics()["generation_tokens_total"]
    slow = s.socket()
    slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
    body = completion(n=8, stream=True, logprobs=20, max_tokens=1200)
    slow.sendall(request("POST", COMPLETION, body))
    produced = wait_parked(s, 8)
    began = time.time()
    fast = [s.post(COMPLETION, completion(max_tokens=50)) for _ in range(3)]
    assert all(r.status_code == 200 for r in fast) and time.time() - began < 10 * SLOWNESS
    s.wait_metric("generation_tokens_total", produced + 150)  # the slow one stands still
    tail = b""
    while b"[DONE]" not in tail:  # now it reads: nothing was lost
        piece = slow.recv(1 << 20)
        assert piece
        tail = (tail + piece)[-4096:]
    slow.close()
    s.wait_metric("generation_tokens_total", before + 8 * 1200 + 150)
    s.wait_metric("num_requests_parked", 0)


def test_a_parked_client_that_hangs_up_is_freed(start):
    s = start()
    slow = s.socket()
    slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
    slow.sendall(request("POST", COMPLETION, completion(n=8, stream=True, logprobs=20, max_tokens=4000)))
    wait_parked(s, 8)
    reset(slow)
    s.wait_metric("num_requests_parked", 0)
    s.wait_metric("kv_cache_usage_perc", 0)
