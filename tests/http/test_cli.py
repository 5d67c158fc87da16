"""The commands that speak in lines: tokenize, detokenize, render, run."""
import json
import os
import pty
import select
import shutil
import signal
import subprocess
import time

from server import BIN, DENSE, ROOT, SLOWNESS, Server

TEXT = ROOT / "tests/golden/text"


def lines(*args, input_):
    r = subprocess.run([BIN, *map(str, args)], cwd=ROOT, input="".join(x if isinstance(x, str) else json.dumps(x) + "\n" for x in input_), capture_output=True, text=True,
                       timeout=120 * SLOWNESS)
    return r, [json.loads(x) for x in r.stdout.splitlines()]


def test_tokenize_and_detokenize_with_nothing_but_a_tokenizer(tmp_path):
    shutil.copy(DENSE / "tokenizer.json", tmp_path)
    texts = ["Hello, wörld", "", "  two\n\nlines 你好", "<|im_start|>user"]
    r, out = lines("tokenize", tmp_path, input_=[{"text": t} for t in texts])
    assert r.returncode == 0 and len(out) == 4 and out[1]["ids"] == []
    r, back = lines("detokenize", tmp_path, input_=[{"ids": o["ids"]} for o in out])
    assert [b["text"] for b in back] == texts
    r, back = lines("detokenize", tmp_path, input_=[{"ids": out[3]["ids"], "skip_special": True}])
    assert back == [{"text": "user"}]


def test_a_bad_line_is_answered_and_the_next_one_goes_on():
    r, out = lines("tokenize", DENSE, input_=["nonsense\n", {"text": 5}, [1], {"text": "ok"}])
    assert r.returncode == 0
    assert [list(o) for o in out] == [["error"], ["error"], ["error"], ["ids"]]
    r, out = lines("detokenize", DENSE, input_=[{"ids": [10**12]}, {"ids": ["a"]}, {"ids": [640]}, {"ids": []}])
    assert [list(o) for o in out] == [["error"], ["error"], ["error"], ["text"]]


def test_render_with_a_model_and_with_a_file(tmp_path):
    messages = [{"role": "user", "content": "Hi"}]
    _, out = lines("render", DENSE, input_=[{"messages": messages}, {"messages": messages, "add_generation_prompt": False}, {"messages": []}])
    assert out[0]["text"].startswith("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")
    assert out[1]["text"] == "<|im_start|>user\nHi<|im_end|>\n"
    assert list(out[2]) == ["error"]
    template = tmp_path / "t.jinja"
    template.write_text("{{ bos_token }}{{ messages[0].content }}{{ extra }}{{ add_generation_prompt }}")
    _, out = lines("render", "--template", template, input_=[{"messages": messages, "bos_token": "<s>", "extra": [1, None]}])
    assert out == [{"text": "<s>Hi[1, None]True"}]


def test_render_equals_the_golden_cases():
    cases = [json.loads(x) for x in (TEXT / "chat_template_cases.jsonl").read_text().splitlines()]
    inputs = []
    for c in cases:
        line = dict(c.get("kwargs") or c.get("vars") or {})
        for key in ("messages", "tools", "add_generation_prompt", "bos_token", "eos_token", "enable_thinking"):
            if key in c:
                line[key] = c[key]
        for k, v in c.items():
            if k not in ("name", "expect", "error", "kwargs", "vars", "id"):
                line.setdefault(k, v)
        inputs.append(line)
    _, out = lines("render", "--template", TEXT / "chat_template.jinja", input_=inputs)
    assert len(out) == len(cases)
    for c, o in zip(cases, out):
        if "expect" in c and c["expect"] is not None:
            assert o == {"text": c["expect"]}, c
        else:
            assert list(o) == ["error"], c


def test_run_in_a_pipe_answers_line_by_line():
    r = subprocess.run([BIN, "run", str(DENSE), "--temperature", "0", "--max-tokens", "12", "--max-model-len", "256"], cwd=ROOT, input="The quick brown fox\n/clear\nThe quick brown fox\n",
                       capture_output=True, text=True, timeout=60 * SLOWNESS)
    assert r.returncode == 0, r.stderr
    assert ">>>" not in r.stdout
    half = len(r.stdout) // 2
    assert r.stdout[:half] == r.stdout[half:] and r.stdout.endswith("\n")
    s = Server(DENSE, "--max-model-len", "256")
    want = s.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "The quick brown fox"}], "temperature": 0, "max_tokens": 12})
    assert s.stop() == 0
    assert r.stdout[:half] == want.json()["choices"][0]["message"]["content"] + "\n"


class Terminal:
    """A program behind a pseudo-terminal."""

    def __init__(self, *args):
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.chdir(ROOT)
            os.execv(BIN, [BIN, *map(str, args)])
        self.text = ""

    def until(self, words, seconds=20):
        deadline = time.time() + seconds * SLOWNESS
        while words not in self.text:
            assert time.time() < deadline, self.text
            if select.select([self.fd], [], [], 0.1)[0]:
                try:
                    self.text += os.read(self.fd, 65536).decode(errors="replace")
                except OSError:
                    break
        before, _, self.text = self.text.partition(words)
        return before

    def type(self, text):
        os.write(self.fd, text.encode())

    def end(self):
        for _ in range(200 * SLOWNESS):
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                os.close(self.fd)
                return os.waitstatus_to_exitcode(status)
            time.sleep(0.05)
        os.kill(self.pid, signal.SIGKILL)
        raise AssertionError("it did not end")


def test_run_in_a_terminal():
    t = Terminal("run", DENSE, "--temperature", "0", "--max-model-len", "4096", "--seed", "1")
    t.until(">>> ")
    t.type("/help\n")
    assert "Ctrl-C" in t.until(">>> ")
    t.type("/set temperature hot\n")
    assert "must be a number" in t.until(">>> ")
    t.type("/set max_tokens 5\n")
    t.until(">>> ")
    t.type("/set\n")
    assert '"max_tokens":5' in t.until(">>> ")
    t.type('"""one\ntwo"""\n')
    t.until("... ")
    t.until(">>> ")
    t.type("one\\\ntwo\n")
    t.until("... ")
    t.until(">>> ")
    t.type("/nonsense\n")
    assert "no such command" in t.until(">>> ")
    t.type("/system Be brief.\n")
    t.until(">>> ")
    t.type("/set max_tokens 3000\n")
    t.until(">>> ")
    t.type("Tell me a long story\n")
    t.until("story")
    time.sleep(0.5)
    os.kill(t.pid, signal.SIGINT)  # stops the answer, not the program
    t.until(">>> ", 5)
    time.sleep(0.3)  # until it waits for input
    os.kill(t.pid, signal.SIGINT)  # at the prompt: a new prompt
    t.until(">>> ", 5)
    t.type("/exit\n")
    assert t.end() == 0


def test_run_ends_with_its_input():
    t = Terminal("run", DENSE)
    t.until(">>> ")
    t.type("\x04")
    assert t.end() == 0
