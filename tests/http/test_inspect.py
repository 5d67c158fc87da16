"""`sheng inspect`: golden models as they are, and copies that are broken in one way each."""
import json
import shutil
import struct
import subprocess

import pytest

from server import BIN, DENSE, ROOT, SLOWNESS, Server

MODELS = ROOT / "tests/golden/models"
GGUF = ROOT / "tests/golden/gguf"
WHOLE = [MODELS / n for n in ("dense-real", "dense-small", "moe-real-fused", "moe-small")] + sorted(GGUF.glob("*.gguf"))
QUANTIZED = sorted(p for p in MODELS.iterdir() if any(w in p.name for w in ("-awq", "-gptq", "-ct-", "-fp8")))


def inspect(model, *options):
    r = subprocess.run([BIN, "inspect", str(model), *map(str, options)], cwd=ROOT, capture_output=True, text=True, timeout=120 * SLOWNESS)
    assert r.returncode in (0, 1), r.stderr
    return r


def facts(model, *options):
    r = inspect(model, "--json", *options)
    out = json.loads(r.stdout)
    assert out["will_start"] == (r.returncode == 0) == (not out["problems"]) and r.stderr == ""
    return out


def groups(f):
    return {g["group"]: g for g in f["weights"]["groups"]}


def texts(f):
    return [p["text"] for p in f["problems"]]


class Folder:
    """A copy of a folder whose model.safetensors is edited: tensors as {name: (dtype, shape, bytes)}."""

    def __init__(self, tmp_path, source=DENSE):
        self.path = tmp_path / "model"
        self.path.mkdir()
        for f in source.iterdir():
            if f.name != "golden.safetensors":
                shutil.copy(f, self.path)
        data = (self.path / "model.safetensors").read_bytes()
        n = struct.unpack("<Q", data[:8])[0]
        header = json.loads(data[8 : 8 + n])
        header.pop("__metadata__", None)
        self.tensors = {k: (v["dtype"], v["shape"], data[8 + n + v["data_offsets"][0] : 8 + n + v["data_offsets"][1]]) for k, v in header.items()}

    def write(self):
        header, body = {}, b""
        for name, (dtype, shape, data) in self.tensors.items():
            header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(body), len(body) + len(data)]}
            body += data
        text = json.dumps(header).encode()
        (self.path / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + body)
        return self.path

    def config(self, **values):
        file = self.path / "config.json"
        config = json.loads(file.read_text())
        config.update(values)
        file.write_text(json.dumps(config))


@pytest.mark.parametrize("model", WHOLE, ids=lambda p: p.name)
def test_a_whole_model_will_start(model):
    f = facts(model)
    assert f["will_start"] and f["n_problems"] == 0 and f["weights"]["unused"]["tensors"] == 0
    assert sum(g["bytes"] for g in f["weights"]["groups"]) == f["weights"]["bytes"]
    assert f["tokenizer"]["probe_text_comes_back"] and f["template"]["renders"] and f["template"]["takes_parts"]
    assert f["template"]["thinks_by_default"] and f["template"]["enable_thinking"]
    assert {"<|im_end|>", "<|endoftext|>"} <= {t["token"] for t in f["stop_tokens"]}
    assert [p["context"] for p in f["memory"]["plans"]] == sorted({4096, f["config"]["max_position"]})
    text = inspect(model)
    assert text.returncode == 0 and text.stdout.splitlines()[-1] == f"sheng serve {model} will start"
    assert all(len(line) <= 100 for line in text.stdout.splitlines() if str(model) not in line)


def test_formats_and_kernels_are_told_by_group():
    g = groups(facts(GGUF / "moe-small-Q4_0.gguf"))
    assert g["experts"]["format"] == "Q4_0" and g["experts"]["tensors"] == 12 and g["head"]["format"] == "Q8_0" and g["router"]["format"] == "F32"
    assert g["attention q"]["kernel"] in ("AVX2+FMA: int4 x int8 panels", "plain C: int4 x int8 panels")
    assert g["router"]["kernel"].startswith(("AVX2+FMA: dot", "plain C: dot"))
    assert groups(facts(GGUF / "moe-small-Q4_0.gguf", "--cpu", "baseline"))["attention q"]["kernel"] == "plain C: int4 x int8 panels"
    f = facts(MODELS / "moe-real-fused")
    assert f["weights"]["visual"]["tensors"] == 33 and f["weights"]["mtp"] and groups(f)["mtp"]["kernel"] == "not computed"


@pytest.mark.skipif(not QUANTIZED, reason="no quantized golden models")
@pytest.mark.parametrize("model", QUANTIZED, ids=lambda p: p.name)
def test_a_quantized_folder_lacks_only_its_tokenizer(model, tmp_path):
    f = facts(model)
    assert [p["where"] for p in f["problems"]] == ["tokenizer"]
    assert any("int4" in g["format"] or "FP8" in g["format"] for g in f["weights"]["groups"])
    assert not (model / ".sheng-cache").exists()
    for file in model.iterdir():
        shutil.copy(file, tmp_path)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(DENSE / name, tmp_path)
    assert facts(tmp_path)["will_start"]
    server = Server(tmp_path, "--max-model-len", "256", "--max-num-seqs", "2")  # the verdict is true
    assert server.stop() == 0


def test_every_missing_and_odd_tensor_is_told_and_what_is_left_over(tmp_path):
    m = Folder(tmp_path)
    gone = [n for n in m.tensors if n.endswith("mlp.up_proj.weight")]
    assert len(gone) > 1
    for name in gone:
        del m.tensors[name]
    odd = next(n for n in m.tensors if n.endswith("mlp.gate_proj.weight"))
    dtype, shape, data = m.tensors[odd]
    m.tensors[odd] = (dtype, [shape[0] // 2, shape[1] * 2], data)
    m.tensors["model.extra"] = ("F32", [2], b"\0" * 8)
    m.write()
    f = facts(m.path)
    assert f["n_problems"] == len(gone) + 1
    assert all(f"tensor {n} is missing" in texts(f) for n in gone)
    assert f"tensor {odd}: shape {shape} is wanted, {[shape[0] // 2, shape[1] * 2]} is found" in texts(f)
    assert f["weights"]["unused"]["names"] == ["model.extra"]
    r = inspect(m.path)
    flat = " ".join(r.stdout.split())
    assert r.returncode == 1 and f"(and {len(gone) - 1} more like it)" in flat
    assert r.stdout.splitlines()[-1] == f"sheng serve {m.path} will not start: {len(gone) + 1} problems"


def test_an_unknown_format_is_named_and_the_rest_is_told(tmp_path):
    m = Folder(tmp_path)
    name = next(n for n in m.tensors if n.endswith("mlp.up_proj.weight"))
    _, shape, data = m.tensors[name]
    m.tensors[name] = ("F8_E5M2", [shape[0] * 2, shape[1]], data)
    f = facts(m.write())
    assert len(texts(f)) == 1 and "F8_E5M2" in texts(f)[0] and name in texts(f)[0]
    assert f["tokenizer"]["vocab_size"] == 640


def test_a_refused_quantization_is_named(tmp_path):
    m = Folder(tmp_path)
    m.config(quantization_config={"quant_method": "bitsandbytes", "load_in_4bit": True})
    f = facts(m.path)
    assert "bitsandbytes" in texts(f)[0] and f["config"] is None and f["tokenizer"]


def test_missing_shards_are_all_told(tmp_path):
    for file in (MODELS / "moe-real-fused").iterdir():
        if "-00002-" not in file.name and "-00003-" not in file.name:
            shutil.copy(file, tmp_path)
    f = facts(tmp_path)
    assert len(texts(f)) == 2 and all("is not there" in t for t in texts(f))
    assert f["config"]["experts"] == 16 and f["tokenizer"] and f["template"]["renders"] and f["weights"] is None and f["memory"]["plans"]


@pytest.mark.parametrize("source", [MODELS / "dense-real/model.safetensors", GGUF / "dense-real-Q4_0.gguf"], ids=lambda p: p.suffix)
@pytest.mark.parametrize("size", [0, 7, 100, 5000, -1])
def test_a_cut_file_is_an_error_and_not_a_crash(tmp_path, source, size):
    data = source.read_bytes()
    data = data[:size]
    if source.suffix == ".gguf":
        model = tmp_path / source.name
        model.write_bytes(data)
    else:
        model = tmp_path / "m"
        shutil.copytree(source.parent, model)
        (model / source.name).write_bytes(data)
    f = facts(model)
    assert f["n_problems"] == 1 and f["problems"][0]["where"] == "files" and f["files"]
    assert (f["tokenizer"] is not None) == (source.suffix != ".gguf")


def test_side_files_that_are_broken(tmp_path):
    m = Folder(tmp_path)
    (m.path / "chat_template.jinja").write_text("{% if %}")
    f = facts(m.path)
    assert f["will_start"] and not f["template"]["compiles"] and "template" in [w["where"] for w in f["warnings"]]
    (m.path / "chat_template.jinja").write_text("{{ raise_exception('no') }}")
    f = facts(m.path)
    assert f["will_start"] and not f["template"]["renders"]
    (m.path / "chat_template.jinja").unlink()
    (m.path / "tokenizer_config.json").unlink()
    assert facts(m.path)["template"] is None
    (m.path / "tokenizer.json").write_text("{}")
    f = facts(m.path)
    assert [p["where"] for p in f["problems"]] == ["tokenizer"] and f["weights"]
    (m.path / "config.json").write_text("{")
    f = facts(m.path)
    assert [p["where"] for p in f["problems"]] == ["files"] and f["config"] is None


def test_contexts_and_memory():
    f = facts(DENSE, "--context", 256, 1000, "--memory", "64MiB")
    assert f["memory"]["total_bytes"] == 64 << 20 and [p["context"] for p in f["memory"]["plans"]] == [256, 1000]
    small, large = f["memory"]["plans"]
    assert small["fits"] and small["sequences_of_that_length"] >= large["sequences_of_that_length"] >= 1
    f = facts(DENSE, "--memory", "4MiB")
    assert not f["will_start"] and "does not fit" in texts(f)[0]
    over = facts(DENSE, "--context", 1 << 20)["memory"]["plans"][0]
    assert not over["fits"] and "max-model-len" in over["error"]
    exact = facts(DENSE, "--exact")["memory"]
    assert exact["kv_bytes_per_token"] == 2 * facts(DENSE)["memory"]["kv_bytes_per_token"]
    r = subprocess.run([BIN, "inspect", str(DENSE), "--context", "many"], cwd=ROOT, capture_output=True, text=True)
    assert r.returncode == 2 and "many" in r.stderr
    assert subprocess.run([BIN, "inspect", "no/such/model"], cwd=ROOT, capture_output=True).returncode == 1


def test_names_from_a_file_cannot_write_to_the_terminal(tmp_path):
    m = Folder(tmp_path)
    m.tensors["evil\x1b[2J\nname"] = ("F32", [1], b"\0" * 4)
    m.write()
    r = inspect(m.path)
    assert "\x1b" not in r.stdout and "evil?[2J?name" in r.stdout
