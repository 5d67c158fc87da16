"""`sheng eval` as a user calls it: what it prints and writes over golden models, and what it says when something is wrong."""
import csv
import html.parser
import json
import os
import pathlib
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIN = str((ROOT / os.environ.get("SHENG_BIN", "sheng")).resolve())
SMOLLM2 = os.environ.get("SHENG_SMOLLM2")
MODELS = ROOT / "tests/golden/models"
DENSE, AWQ = MODELS / "dense-small", MODELS / "dense-small-awq"
SLOWNESS = 10 if re.search(r"build/(address|thread|undefined)/", BIN) else 1
VOID = {"meta", "br", "link", "img", "input", "hr"}


def run(*args, status=0):
    r = subprocess.run([BIN, "eval", *map(str, args), "--cache-dir", ""], cwd=ROOT, capture_output=True, text=True, timeout=120 * SLOWNESS)
    assert r.returncode == status, r.stderr
    return r


def fails(*args, status=1):
    """The one sentence on stderr."""
    r = run(*args, status=status)
    assert r.stdout == "" and len(r.stderr.splitlines()) == 1 and r.stderr.startswith("sheng eval: "), r.stderr
    return r.stderr


class Page(html.parser.HTMLParser):
    """Checks that tags are closed in order; keeps what is needed."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.open, self.tags, self.texts, self.attributes = [], [], [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag):
        assert self.open and self.open.pop() == tag, tag

    def handle_data(self, data):
        self.texts.append(data)

    @property
    def text(self):
        return "".join(self.texts)


@pytest.fixture(scope="module")
def awq(tmp_path_factory):
    """One run with everything: folder with r.json, r.csv, r.html; its standard output."""
    out = tmp_path_factory.mktemp("awq")
    text = out / "te<b>&xt.jsonl"
    text.write_text("".join(json.dumps(x) + "\n" for x in [
        {"text": "<script>alert('1 & 2')</script> </q>\x07 " * 8},
        {"messages": [{"role": "user", "content": "What is 2 + 2?"}, {"role": "assistant", "content": "4"}], "enable_thinking": False},
        {"text": "plain words of a third line, long enough for a prompt of some tokens"}]))
    tasks = out / "tasks.jsonl"
    tasks.write_text('{"prompt": "a", "answer": "b", "max_tokens": 3, "task": "<i>t</i>"}\n'
                     '{"messages": [{"role": "user", "content": "a"}], "choices": ["x", "yy", "zzz"], "answer": 1}\n')
    r = run(AWQ, "--against", DENSE, "--text", text, "--tasks", tasks, "--prompts", 2, "--exact", "--json", out / "r.json", "--csv", out / "r.csv", "--report", out / "r.html")
    assert r.stderr == ""
    return out, r.stdout


def test_the_outputs_say_the_same(awq):
    out, table = awq
    result = json.loads((out / "r.json").read_text())
    rows = list(csv.DictReader((out / "r.csv").open(newline="")))
    value = {(r["measure"], r["layer"]): float(r["value"]) for r in rows}
    assert result["model"]["name"] == "dense-small-awq" and result["reference"]["name"] == "dense-small" and result["exact"] is True
    assert {r["model"] for r in rows} == {"dense-small-awq"} and {r["reference"] for r in rows} == {"dense-small"}
    assert value["perplexity", ""] == result["model"]["perplexity"] > 1
    assert value["kl_mean", ""] == result["kl"]["mean"] > 0
    assert value["kl_p99", ""] == result["kl"]["p99"] <= result["kl"]["max"] == value["kl_max", ""]
    assert value["top1_agreement", ""] == result["top1_agreement"] <= 1
    assert len(result["layers"]) == 9 and result["layers"][0]["mean"] == 0
    for layer in result["layers"]:
        assert value["relative_error_mean", str(layer["layer"])] == layer["mean"] <= layer["max"] == value["relative_error_max", str(layer["layer"])]
    assert sum(b["count"] for b in result["kl"]["histogram"]) == result["text"]["scored"] == result["text"]["tokens"] - result["text"]["windows"]
    assert 0 <= result["greedy_prefix"]["min"] <= result["greedy_prefix"]["mean"] <= 64 and result["greedy_prefix"]["prompts"] == 2
    assert [t["task"] for t in result["tasks"]] == ["<i>t</i>", "tasks"]
    assert result["tasks"][0]["exact"]["n"] == 1 and result["tasks"][1]["choice"]["n"] == 1 and "exact" not in result["tasks"][1]
    assert f"perplexity               {result['model']['perplexity']:.4f}\n" in table
    assert f"  of the reference       {result['reference']['perplexity']:.4f}  " in table
    assert f"KL divergence, nats      mean {result['kl']['mean']:.3g}, " in table
    assert not any(ord(c) < 32 and c != "\n" for c in table)


def test_the_page_is_whole_escaped_and_alone(awq):
    out, _ = awq
    text = (out / "r.html").read_text()
    page = Page(text)
    result = json.loads((out / "r.json").read_text())
    assert {"html", "head", "title", "style", "body", "svg", "polyline", "rect"} <= set(page.tags) and "script" not in page.tags and "i" not in page.tags
    assert not [a for a in page.attributes if a[0] in ("src", "href") or a[0].startswith("on") or "url(" in (a[1] or "")]
    assert "te<b>&xt.jsonl" in page.text and "<i>t</i>" in page.text and result["kl"]["worst"]["context"].replace("\x07", "\ufffd") in page.text
    assert "http" not in text and "@import" not in text and "\x07" not in text
    assert text.count("<circle") == len(result["layers"])


def test_earlier_results_are_shown_beside(awq, tmp_path):
    out, _ = awq
    gptq = tmp_path / "gptq.json"
    run(MODELS / "dense-small-gptq", "--against", DENSE, "--samples", 1, "--prompts", 0, "--json", gptq)
    run(DENSE, "--against", DENSE, "--samples", 1, "--prompts", 0, "--compare", f"{out / 'r.json'},{gptq}", "--report", tmp_path / "c.html")
    page = Page((tmp_path / "c.html").read_text())
    assert ("aria-label", "Size against perplexity") in page.attributes  # one KL is 0, which has no logarithm
    assert {"dense-small", "dense-small-awq", "dense-small-gptq"} <= set(page.texts)
    run(AWQ, "--against", DENSE, "--samples", 1, "--prompts", 0, "--compare", out / "r.json", "--compare", gptq, "--report", tmp_path / "d.html")
    assert ("aria-label", "Size against mean KL divergence") in Page((tmp_path / "d.html").read_text()).attributes


def test_a_model_against_itself_is_no_distance_away(tmp_path):
    run(DENSE, "--against", DENSE, "--samples", 4, "--prompts", 2, "--json", tmp_path / "r.json")
    r = json.loads((tmp_path / "r.json").read_text())
    assert r["kl"]["mean"] == r["kl"]["max"] == 0 and r["top1_agreement"] == 1 and r["greedy_prefix"]["min"] == 64
    assert r["model"]["perplexity"] == r["reference"]["perplexity"]
    assert all(layer["max"] == 0 for layer in r["layers"])
    gguf = ROOT / "tests/golden/gguf/dense-small-bf16.gguf"
    run(gguf, "--against", DENSE, "--samples", 2, "--prompts", 2, "--exact", "--json", tmp_path / "g.json")
    r = json.loads((tmp_path / "g.json").read_text())
    assert 0 <= r["kl"]["max"] < 1e-7 and r["top1_agreement"] == 1 and r["greedy_prefix"]["min"] == 64  # same weights, other order of heads


def test_a_run_says_the_same_twice(tmp_path):
    for name, threads in (("a", 1), ("b", 2)):
        run(AWQ, "--against", DENSE, "--samples", 2, "--prompts", 2, "--threads", threads, "--json", tmp_path / name)
    a, b = (json.loads((tmp_path / n).read_text()) for n in "ab")
    assert a.pop("seconds") > 0 and b.pop("seconds") > 0 and a == b


def test_thoughts_are_left_out_of_answers_given_and_wanted(tmp_path):
    ask = "<|im_start|>user\\nHello!<|im_end|>\\n<|im_start|>assistant\\n<think>\\n"
    answer = "Hello! I am sheng's small test model. How can I help you?"
    tasks = tmp_path / "tasks.jsonl"
    tasks.write_text("".join('{"prompt": "%s", "answer": "%s", "task": "%d"}\n' % (ask, a, i) for i, a in enumerate((answer, "Other thoughts.\\n</think>\\n\\n" + answer, "Other words."))))
    run(ROOT / "models/sheng-small", "--samples", 1, "--tasks", tasks, "--json", tmp_path / "r.json")
    assert [t["exact"]["model"] for t in json.loads((tmp_path / "r.json").read_text())["tasks"]] == [1, 1, 0]


def test_what_is_wrong_is_said(tmp_path):
    assert "/nonexistent" in fails("/nonexistent")
    assert "/nonexistent" in fails(DENSE, "--against", "/nonexistent")
    assert "/nonexistent.txt" in fails(DENSE, "--text", "/nonexistent.txt")
    empty = tmp_path / "empty.txt"
    empty.write_text(" \n")
    assert "holds no text" in fails(DENSE, "--text", empty)
    short = tmp_path / "short.txt"
    short.write_text("a")
    assert "two tokens" in fails(DENSE, "--text", short)
    broken = tmp_path / "broken.jsonl"
    broken.write_text('{"text": "fine"}\n{"text": "not\n')
    assert f"{broken} line 2" in fails(DENSE, "--text", broken)
    tasks = tmp_path / "tasks.jsonl"
    tasks.write_text('{"prompt": "a", "choices": ["b"], "answer": 0}\n')
    assert f"{tasks} line 1: " in fails(DENSE, "--tasks", tasks)
    tasks.write_text('{"prompt": "a", "choices": ["b", "c"], "answer": 2}\n')
    assert "0 to 1" in fails(DENSE, "--tasks", tasks)
    assert "tokenizer" in fails(AWQ)  # it has none of its own


@pytest.mark.parametrize("task, says", [
    ('{"prompt": "a", ', "invalid JSON"),
    ("null", "it is null, wanted an object"),
    ('{"prompt": "a"}', '"answer" is missing'),
    ('{"prompt": 5, "answer": "x"}', '"prompt" is a number, wanted a string'),
    ('{"prompt": "", "answer": "x"}', "its prompt is empty"),
    ('{"prompt": "a", "answer": 7}', '"answer" is a number'),
    ('{"prompt": "a", "choices": [], "answer": 0}', '"choices" is an array of no text'),
    ('{"prompt": "a", "choices": ["x", 5], "answer": 0}', '"choices"[1] is a number'),
    ('{"prompt": "a", "choices": ["x", "y"], "answer": 0.5}', "wanted the index"),
    ('{"prompt": "a", "answer": "x", "max_tokens": 1e30}', '"max_tokens" is wrong'),
    ('{"messages": [], "answer": "x"}', '"messages" is an empty list'),
    ('{"messages": [{"role": "user", "content": "x"}], "tools": 5, "answer": "x"}', '"tools" is a number'),
    (json.dumps({"prompt": "word " * 20000, "answer": "x"}), "is made for at most 4096"),
    (json.dumps({"prompt": "a", "choices": ["x", "word " * 20000], "answer": 0}), "with its longest choice"),
])
def test_a_task_that_is_wrong_is_named(tmp_path, task, says):
    path = tmp_path / "tasks.jsonl"
    path.write_text('{"prompt": "ok", "answer": "x", "max_tokens": 2}\n' + task + "\n")
    said = fails(DENSE, "--tasks", path, "--samples", 1)
    assert f"{path} line 2" in said and says in said


def test_texts_that_are_none_are_refused(tmp_path):
    binary = tmp_path / "binary"
    binary.write_bytes(bytes(range(256)) * 20)
    assert "is not text in UTF-8" in fails(DENSE, "--text", binary)
    assert "is a folder, a file was wanted" in fails(DENSE, "--text", tmp_path)
    assert "larger than the limit" in fails(DENSE, "--text", "/dev/zero")
    deep = tmp_path / "deep.jsonl"
    deep.write_text("[" * 100000 + "]" * 100000 + "\n")
    assert "line 1" in (said := fails(DENSE, "--text", deep)) and "nested too deeply" in said


def test_models_of_other_vocabularies_are_refused(tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    for f in DENSE.iterdir():
        if f.name == "tokenizer.json":
            t = json.loads(f.read_text())
            vocab = t["model"]["vocab"]
            a, b = (next(k for k, v in vocab.items() if v == i) for i in (40, 41))
            vocab[a], vocab[b] = vocab[b], vocab[a]
            (other / f.name).write_text(json.dumps(t))
        else:
            (other / f.name).symlink_to(f)
    assert "token 40 is " in fails(other, "--against", DENSE)
    if SMOLLM2:
        assert "640" in (said := fails(DENSE, "--against", ROOT / SMOLLM2)) and "49152" in said


def test_files_that_cannot_be_written_are_said_before_the_work(tmp_path):
    for option in ("--json", "--csv", "--report"):
        target = tmp_path / "no such folder" / "x"
        assert str(target) in fails(DENSE, "--against", DENSE, option, target)
    nothing = tmp_path / "x.json"
    fails(DENSE, "--text", "/nonexistent", "--json", nothing)
    assert list(tmp_path.iterdir()) == []  # no half-written file is left


def test_wrong_calls_have_their_status(tmp_path):
    assert "MODEL is missing" in run(status=2).stderr
    assert "--report" in fails(DENSE, "--compare", "x.json", status=2)
    assert "x.json" in fails(DENSE, "--compare", "x.json", "--report", tmp_path / "r.html")
    (tmp_path / "no.json").write_text("{}")
    assert "model.name" in fails(DENSE, "--report", tmp_path / "r.html", "--compare", tmp_path / "no.json")
    run(DENSE, "--seq-len", 1, status=2)


def test_score_text_says_what_is_missing(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "the cat"}\n{"text": 1}\n')
    (tmp_path / "b.txt").write_text("the cat\n")
    score = [sys.executable, str(ROOT / "tools/score_text.py")]
    r = subprocess.run([*score, str(tmp_path / "a.jsonl"), str(tmp_path / "b.txt")], capture_output=True, text=True, timeout=60)
    assert r.returncode == 1 and 'line 2: "text" is int' in r.stderr
    (tmp_path / "a.jsonl").write_text('{"text": "the cat"}\n{"text": "sat"}\n')
    r = subprocess.run([*score, str(tmp_path / "a.jsonl"), str(tmp_path / "b.txt")], capture_output=True, text=True, timeout=60)
    assert r.returncode == 1 and "2 texts" in r.stderr
    r = subprocess.run([*score, str(tmp_path / "b.txt"), str(tmp_path / "b.txt"), "--json"], capture_output=True, text=True, timeout=60)
    if r.returncode:
        assert "pip install sacrebleu" in r.stderr
    else:
        assert json.loads(r.stdout)["chrf"] == pytest.approx(100)


def test_the_texts_in_the_program_share_no_long_line():
    sets = {}
    for name in ("calibration", "evaluation"):
        records = [json.loads(line) for line in (ROOT / f"src/quant/texts/{name}.jsonl").read_text().splitlines()]
        assert all(set(r) == {"text"} or {"messages"} <= set(r) <= {"messages", "tools"} for r in records)
        assert all(r["messages"][-1]["role"] == "assistant" for r in records if "messages" in r)
        texts = [r["text"] if "text" in r else "\n".join(m["content"] for m in r["messages"]) for r in records]
        sets[name] = {line.strip() for t in texts for line in t.split("\n") if len(line.strip()) >= 60}
    assert sets["calibration"] and sets["evaluation"] and not sets["calibration"] & sets["evaluation"]


@pytest.mark.smollm2
@pytest.mark.skipif(not SMOLLM2, reason="SHENG_SMOLLM2 names no file")
def test_a_gguf_written_as_a_folder_is_the_same_model(tmp_path):
    pytest.importorskip("numpy")
    out = tmp_path / "hf"
    r = subprocess.run([sys.executable, str(ROOT / "tools/smollm2_to_hf.py"), str(ROOT / SMOLLM2), str(out)], capture_output=True, text=True, timeout=300)
    assert r.returncode == 0 and "272 tensors" in r.stdout, r.stderr
    texts = ["  a\n\n b\t\tc  ", "12345 678.90", "<|im_start|>user\nHi<|im_end|>", "don't I'll THEY'RE", "日本語 中文 한국어 🎉👩\u200d👩\u200d👧 e\u0301", "x\u00a0y\r\n" + "a" * 300]
    lines = "".join(json.dumps({"text": t}) + "\n" for t in texts)
    ids = [subprocess.run([BIN, "tokenize", str(m)], input=lines, capture_output=True, text=True, timeout=120 * SLOWNESS).stdout for m in (ROOT / SMOLLM2, out)]
    assert ids[0] == ids[1] and "error" not in ids[0] and len(ids[0].splitlines()) == len(texts)
    run(out, "--against", ROOT / SMOLLM2, "--samples", 1, "--seq-len", 64, "--prompts", 0, "--exact", "--json", tmp_path / "r.json")
    result = json.loads((tmp_path / "r.json").read_text())
    assert result["kl"]["max"] < 1e-8 and result["top1_agreement"] == 1  # the same values; float32 sums in another order
    assert result["layers"][0]["max"] == 0 and all(layer["max"] < 1e-4 for layer in result["layers"])
    (out / "model.safetensors").unlink()  # half a gigabyte
