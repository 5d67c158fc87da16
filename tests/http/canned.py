"""A server of canned answers for the load generator: right ones, and every kind of wrong one.

    python3 tests/http/canned.py [PORT]      answers right ones until it is ended (bench/README.md measures the load generator with it)

A mode of MODES is what one request gets; a server takes its modes in turn. It knows no HTTP beyond what the load generator sends: heads in one piece and bodies with a length."""
import asyncio
import json
import re
import sys
import threading

TOKENS = 8  # of an answer
PROMPT_TOKENS = 40


def event(data):
    return b"data: " + (data if isinstance(data, bytes) else json.dumps(data).encode()) + b"\n\n"


def delta(text, **more):
    return {"object": "chat.completion.chunk", "choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None, **more}]}


def answer():
    """The events of a right answer: a role, TOKENS pieces of text, the end, usage, [DONE]."""
    out = [event({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]})]
    out += [event(delta(f" {i}")) for i in range(TOKENS)]
    out.append(event({"choices": [{"index": 0, "delta": {}, "finish_reason": "length"}]}))
    out.append(event({"choices": [], "usage": {"prompt_tokens": PROMPT_TOKENS, "completion_tokens": TOKENS, "prompt_tokens_details": {"cached_tokens": 3}}}))
    out.append(event(b"[DONE]"))
    return b"".join(out)


STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def chunk(data):
    return b"%x\r\n%s\r\n" % (len(data), data)


def whole(status, body, kind="application/json"):
    return f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


GOOD = answer()
NO_USAGE = b"\n\n".join(e for e in GOOD.split(b"\n\n") if b"usage" not in e)

# What is sent, and whether the connection is closed behind it.
MODES = {
    "good": (STREAM + chunk(GOOD) + chunk(b""), False),
    "bytes": (STREAM + b"".join(chunk(GOOD[i:i + 1]) for i in range(len(GOOD))) + chunk(b""), False),
    "good and closes": (STREAM + chunk(GOOD) + chunk(b""), True),
    "to the end": (b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n" + GOOD, True),
    "hangs after": (STREAM + chunk(GOOD), False),
    "no usage": (STREAM + chunk(NO_USAGE) + chunk(b""), False),
    "503": (whole("503 Service Unavailable", b'{"error": {"message": "the queue is full"}}'), False),
    "429 and closes": (b"HTTP/1.1 429 Too Many Requests\r\nContent-Length: 100\r\n\r\nslow down", True),
    "closes": (b"", True),
    "closes in the head": (STREAM[:30], True),
    "closes in the stream": (STREAM + chunk(GOOD[:300]), True),
    "ends without an end": (STREAM + chunk(event(delta("x"))) + chunk(b""), False),
    "broken event": (STREAM + chunk(event(b'{"choices": [{"delta"')) + chunk(b""), False),
    "no event": (STREAM + chunk(b"") , False),
    "page": (whole("200 OK", b"<html>\nhello\n</html>\n", "text/html"), False),
    "json": (whole("200 OK", b'{"choices": [{"message": {"content": "x"}}]}\n'), False),
    "error event": (STREAM + chunk(event({"error": {"message": "out of pages", "code": 500}})) + chunk(b""), False),
    "not http": (b"220 mail.example.com ESMTP\r\n", True),
    "bad chunk": (STREAM + b"zz\r\n", False),
    "silent": (b"", False),
}


class Connection(asyncio.Protocol):
    def __init__(self, server):
        self.server = server
        self.data = b""

    def connection_made(self, transport):
        self.transport = transport
        self.server.connections += 1

    def data_received(self, data):
        self.data += data
        while b"\r\n\r\n" in self.data:
            head, rest = self.data.split(b"\r\n\r\n", 1)
            length = re.search(rb"content-length: (\d+)", head, re.I)
            n = int(length.group(1)) if length else 0
            if len(rest) < n:
                return
            body, self.data = rest[:n], rest[n:]
            self.answer(head, body)

    def answer(self, head, body):
        if head.startswith(b"GET"):
            self.transport.write(whole("200 OK", b'{"data": [{"id": "canned"}]}'))
            return
        if b'"stream":true' not in body:  # a probe: a word is two tokens here, and the template has seven
            words = json.loads(body)["messages"][0]["content"].count(" ") + 1
            self.transport.write(whole("200 OK", json.dumps({"usage": {"prompt_tokens": 7 + 2 * words}}).encode()))
            return
        self.server.requests.append((head, body)) if self.server.keep else None
        data, close = MODES[self.server.modes[self.server.served % len(self.server.modes)]]
        self.server.served += 1
        if self.server.dies_after and self.server.served > self.server.dies_after:
            self.server.listener.close()
            close = True
            data = b""
        if data:
            self.transport.write(data)
        if close:
            self.transport.close()


class Canned:
    """with Canned("good", "503") as server: ... server.url"""

    def __init__(self, *modes, keep=True, port=0, dies_after=0):
        self.modes, self.keep, self.dies_after = modes or ("good",), keep, dies_after
        self.served = self.connections = 0
        self.requests = []
        self.loop = asyncio.new_event_loop()
        self.listener = self.loop.run_until_complete(self.loop.create_server(lambda: Connection(self), "127.0.0.1", port, backlog=1024))
        self.url = f"http://127.0.0.1:{self.listener.sockets[0].getsockname()[1]}"

    def __enter__(self):
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()
        return self

    def __exit__(self, *error):
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.listener.close()
        self.loop.close()


if __name__ == "__main__":
    canned = Canned(keep=False, port=int(sys.argv[1]) if len(sys.argv) > 1 else 0)
    print(canned.url, flush=True)
    canned.loop.run_forever()
