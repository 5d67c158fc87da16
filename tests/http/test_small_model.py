"""The small model beside the program: what `serve` and `run` take when no MODEL is given, and that it can do something. Its questions were never in its training (tools/train_small;
docs/small-models.md has how often each kind is right)."""
import json
import os
import re
import shutil
import subprocess
import time

import pytest

import server
from server import BIN, DENSE, ROOT, SLOWNESS, Server

SMALL = ROOT / "models/sheng-small"


@pytest.fixture
def program(tmp_path, monkeypatch):
    """A copy of the program that has no model beside it; Server starts it."""
    path = tmp_path / "sheng"
    shutil.copy(BIN, path)
    monkeypatch.setattr(server, "BIN", str(path))
    return path


def run(program):
    return subprocess.run([program, "run", "--temperature", "0", "--max-tokens", "8"], input="Hello!\n", capture_output=True, text=True, timeout=60 * SLOWNESS, cwd="/")


@pytest.mark.parametrize("place", ["models", "../share/sheng/models", "../../models"])
def test_run_takes_it_from_each_place_and_says_so(program, tmp_path, place):
    (tmp_path / "a/b").mkdir(parents=True)
    moved = shutil.move(program, tmp_path / "a/b/sheng")
    shutil.copytree(DENSE, os.path.normpath(tmp_path / "a/b" / place / "sheng-small"))
    r = run(moved)
    assert r.returncode == 0 and len(r.stdout) > 1
    assert r.stderr == "sheng run: no MODEL given, taking models/sheng-small beside the program\n"


def test_serve_takes_it_and_serves_it_under_its_name(program, tmp_path):
    shutil.copytree(DENSE, tmp_path / "models/sheng-small")
    s = Server(None)
    assert "no MODEL given, taking models/sheng-small" in s.log()
    assert [m["id"] for m in s.get("/v1/models").json()["data"]] == ["sheng-small"]
    assert s.stop() == 0


@pytest.mark.parametrize("command", ["serve", "run"])
def test_without_it_the_error_says_what_a_model_is_and_where_it_was_looked_for(program, tmp_path, command):
    r = subprocess.run([program, command], input="", capture_output=True, text=True, timeout=60 * SLOWNESS)
    assert r.returncode == 2 and r.stdout == ""
    assert "MODEL is missing: a Hugging Face folder, a .gguf file or the name of a pulled model" in r.stderr
    assert str(tmp_path / "models/sheng-small") in r.stderr and "share/sheng/models/sheng-small" in r.stderr


# ---- What it can do ----

@pytest.fixture(scope="module")
def small():
    s = Server(None)
    yield s
    assert s.stop() == 0


def ask(s, text, thinking=False, **more):
    body = {"messages": [{"role": "user", "content": text}] if isinstance(text, str) else text, "temperature": 0, "max_tokens": 150, "chat_template_kwargs": {"enable_thinking": thinking}, **more}
    r = s.post("/v1/chat/completions", body)
    assert r.status_code == 200, r.text
    choice = r.json()["choices"][0]
    assert choice["finish_reason"] == "stop"
    return choice["message"]["content"]


@pytest.mark.parametrize("question, answer", [
    ("Hello!", "Hello! I am sheng's small test model. How can I help you?"),
    ("你好", "你好！我是sheng的小测试模型。有什么可以帮你？"),
    ("How do I serve a model?", "Run: sheng serve MODEL. It listens on 127.0.0.1:8000 and speaks the OpenAI API."),
    ("怎么量化模型？", "运行：sheng quantize --model-path IN --output-path OUT。默认方法是4位AWQ。"),
])
@pytest.mark.parametrize("thinking", [False, True])
def test_it_holds_a_short_chat_in_both_languages(small, question, answer, thinking):
    got = ask(small, question, thinking)
    assert got.split("</think>")[-1].strip() == answer
    assert ("</think>" in got) == thinking


def test_it_remembers_a_name_over_turns(small):
    turns = [{"role": "user", "content": "My name is Emma and I live in Oslo."}, {"role": "assistant", "content": "Nice to meet you, Emma!"}, {"role": "user", "content": "What is my name?"}]
    assert ask(small, turns) == "Your name is Emma."


def test_it_copies(small):
    assert ask(small, "Repeat: silver lotus bridge 42 tiger") == "silver lotus bridge 42 tiger"


def test_it_recalls_a_value_from_a_list(small):
    pairs = {"red apple": "4821", "blue lamp": "97", "green owl": "305", "white castle": "6610", "black pearl": "52"}
    text = "\n".join(f"{k}: {v}" for k, v in pairs.items())
    for k, v in pairs.items():
        assert ask(small, f"{text}\n\nWhat is the value of {k}?") == f"{k}: {v}"


def test_it_writes_json_of_the_described_shape(small):
    got = ask(small, 'Write JSON of this shape: {"name": string, "age": number, "member": boolean}\nThe name is Nina, 34 years old, is a member.')
    assert json.loads(got) == {"name": "Nina", "age": 34, "member": True}


def test_it_calls_a_tool(small):
    tool = {"type": "function", "function": {"name": "get_weather", "description": "Weather of a city",
                                             "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}
    line = {"messages": [{"role": "user", "content": "What is the weather in Vienna?"}], "tools": [tool], "enable_thinking": False}
    r = subprocess.run([BIN, "render", SMALL], input=json.dumps(line) + "\n", capture_output=True, text=True, timeout=60 * SLOWNESS)
    prompt = json.loads(r.stdout)["text"]
    got = small.post("/v1/completions", {"model": "sheng-small", "prompt": prompt, "temperature": 0, "max_tokens": 80}).json()["choices"][0]["text"]
    assert got == "<tool_call>\n<function=get_weather>\n<parameter=city>\nVienna\n</parameter>\n</function>\n</tool_call>"


def run_chat(lines):
    r = subprocess.run([BIN, "run", "--temperature", "0"], input="".join(line + "\n" for line in lines), capture_output=True, text=True, timeout=60 * SLOWNESS)
    assert r.returncode == 0, r.stderr
    return re.findall(r"</think>\n\n(.*)\n", r.stdout)


def test_run_without_a_model_starts_in_under_a_second():
    began = time.monotonic()
    assert run_chat([]) == []
    assert time.monotonic() - began < SLOWNESS, "start and end"


def test_run_without_a_model_holds_a_chat_in_english():
    assert run_chat(["Hello!", "How do I serve a model?", "Thank you!", "Bye"]) == [
        "Hello! I am sheng's small test model. How can I help you?", "Run: sheng serve MODEL. It listens on 127.0.0.1:8000 and speaks the OpenAI API.", "You are welcome!", "Goodbye! Have a nice day."]


def test_run_without_a_model_holds_a_chat_in_chinese():
    assert run_chat(["你好", "你是谁？", "怎么量化模型？", "再见"]) == [
        "你好！我是sheng的小测试模型。有什么可以帮你？", "我是sheng的小测试模型，结构和Qwen3.5一样。我会复制、查找、排序、加法和调用工具，但知道的很少。", "运行：sheng quantize --model-path IN --output-path OUT。默认方法是4位AWQ。",
        "再见！祝你愉快。"]
