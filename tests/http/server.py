"""Starts and stops `sheng serve` for the tests, and speaks to it below and above HTTP libraries.

The program is SHENG_BIN (default ./sheng). The port is chosen by the system; the server prints it on its ready line. A server that dies or does not stop shows its log."""
import json
import os
import pathlib
import re
import select
import signal
import socket
import subprocess
import tempfile
import time

import httpx

ROOT = pathlib.Path(__file__).resolve().parents[2]
DENSE = ROOT / "tests/golden/models/dense-small"
BIN = str((ROOT / os.environ.get("SHENG_BIN", "sheng")).resolve())
SMOLLM2 = os.environ.get("SHENG_SMOLLM2")
if SMOLLM2:
    SMOLLM2 = str((ROOT / SMOLLM2).resolve())

# An instrumented program is many times slower; limits in seconds are multiplied by this.
SLOWNESS = 10 if re.search(r"build/(address|thread|undefined)/", BIN) else 1
THREADS = "build/thread/" in BIN  # the slowest of them


class Server:
    running = []  # those a failing test may leave behind

    def __init__(self, model=DENSE, *options, env=None, wait=True):
        self.log_file = tempfile.TemporaryFile(mode="w+")
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("SHENG_", "VLLM_"))}
        environment.update(env or {})
        command = [BIN, "serve", *([] if model is None else [str(model)]), "--port", "0", *map(str, options)]
        self.process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=self.log_file, text=True)
        self.url = self.port = None
        Server.running.append(self)
        if wait:
            self.wait_ready()

    def log(self):
        self.log_file.flush()
        self.log_file.seek(0)
        return self.log_file.read()

    def wait_ready(self, seconds=60):
        deadline = time.time() + seconds * SLOWNESS
        while time.time() < deadline:
            readable, _, _ = select.select([self.process.stdout], [], [], 0.2)
            if readable:
                line = self.process.stdout.readline()
                found = re.match(r"sheng is ready on (http://\S+:(\d+))", line)
                if found:
                    self.url, self.port = found.group(1), int(found.group(2))
                    return
                if not line:
                    break
        self.process.kill()
        raise AssertionError(f"the server did not get ready\n{self.log()}")

    def listening_port(self, seconds=20):
        """The port from the log, before the server is warm."""
        deadline = time.time() + seconds * SLOWNESS
        while time.time() < deadline:
            found = re.search(r"listening on http://\S+:(\d+)", self.log())
            if found:
                return int(found.group(1))
            time.sleep(0.005)
        raise AssertionError(self.log())

    def stop(self, sig=signal.SIGTERM, seconds=30):
        """Ends the server (sig None: it is ending already) and returns its status."""
        if sig is not None and self.process.poll() is None:
            self.process.send_signal(sig)
        try:
            status = self.process.wait(seconds * SLOWNESS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise AssertionError(f"the server did not stop\n{self.log()}") from None
        finally:
            self.process.stdout.close()
            Server.running.remove(self)
        return status

    def alive(self):
        return self.process.poll() is None

    def rss(self):
        """Resident bytes that are the process's own (mapped weights left out)."""
        with open(f"/proc/{self.process.pid}/status") as status:
            for line in status:
                if line.startswith("RssAnon:"):
                    return int(line.split()[1]) * 1024
        raise AssertionError("no RssAnon")

    # --- speaking ---

    def get(self, path, **kw):
        return httpx.get(self.url + path, timeout=60 * SLOWNESS, **kw)

    def post(self, path, body=None, **kw):
        if body is not None and not isinstance(body, (bytes, str)):
            kw["json"] = body
        elif body is not None:
            kw["content"] = body
        return httpx.post(self.url + path, timeout=60 * SLOWNESS, **kw)

    def metrics(self):
        values = {}
        for line in self.get("/metrics").text.splitlines():
            if line and not line.startswith("#"):
                name, value = line.rsplit(" ", 1)
                key = name.split("{")[0].split(":")[-1]
                values[key] = values.get(key, 0) + float(value)
        return values

    def wait_metric(self, name, want, seconds=10):
        deadline = time.time() + seconds * SLOWNESS
        while True:
            value = self.metrics()[name]
            if value == want:
                return time.time()
            assert time.time() < deadline, f"{name} is {value}, wanted {want}\n{self.log()}"
            time.sleep(0.01)

    def socket(self, timeout=30):
        return socket.create_connection(("127.0.0.1", self.port), timeout * SLOWNESS)

    def raw(self, data):
        """Sends bytes and returns everything until the server closes."""
        with self.socket() as s:
            s.sendall(data)
            return read_all(s)


def small_limits():
    """Memory limits around what the smallest model needs for its fixed parts."""
    return [f"{kib}KiB" for kib in range(6 << 10, 16 << 10, 256)]


def read_all(s):
    out = b""
    while True:
        try:
            piece = s.recv(65536)
        except ConnectionResetError:
            return out
        if not piece:
            return out
        out += piece


class Reader:
    """Reads HTTP responses off one connection, one after the other."""

    def __init__(self, sock):
        self.sock, self.data = sock, b""

    def _more(self):
        piece = self.sock.recv(65536)
        if not piece:
            raise EOFError(self.data)
        self.data += piece

    def response(self):
        while b"\r\n\r\n" not in self.data:
            self._more()
        head, self.data = self.data.split(b"\r\n\r\n", 1)
        lines = head.decode().split("\r\n")
        status = int(lines[0].split()[1])
        headers = {k.lower(): v.strip() for k, v in (line.split(":", 1) for line in lines[1:])}
        if status == 100:
            return status, headers, b""
        if headers.get("transfer-encoding") == "chunked":
            body = b""
            while True:
                while b"\r\n" not in self.data:
                    self._more()
                size, self.data = self.data.split(b"\r\n", 1)
                n = int(size, 16)
                while len(self.data) < n + 2:
                    self._more()
                body += self.data[:n]
                self.data = self.data[n + 2:]
                if not n:
                    return status, headers, body
        n = int(headers["content-length"])
        while len(self.data) < n:
            self._more()
        body, self.data = self.data[:n], self.data[n:]
        return status, headers, body


def request(method, path, body=None, **headers):
    """The bytes of a request."""
    data = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"{method} {path} HTTP/1.1", "Host: x"] + [f"{k.replace('_', '-')}: {v}" for k, v in headers.items()]
    if body is not None and "Transfer_Encoding" not in headers:
        lines.append(f"Content-Length: {len(data)}")
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + data


def chat(text="The quick brown fox", **fields):
    """A chat request whose answer is the same every time."""
    body = {"messages": [{"role": "user", "content": text}], "max_tokens": 16, "temperature": 0, "ignore_eos": True}
    body.update(fields)
    return body


def completion(prompt="The quick brown fox", **fields):
    body = {"prompt": prompt, "max_tokens": 16, "temperature": 0, "ignore_eos": True}
    body.update(fields)
    return body
