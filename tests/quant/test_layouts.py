"""Folders that sheng's packing and writer make, unpacked by layouts.py: every weight is the number that was quantized, and the config says to other programs
what the folder holds. The folders come from a unit test's program, tests/unit/quant/layouts_test --write."""
import json
import os
import pathlib
import re
import subprocess

import layouts
import numpy as np
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = (ROOT / os.environ.get("SHENG_BIN", "build/release/sheng")).parent
PROGRAM = BUILD / "tests/unit/quant/layouts_test"
MODELS = ("dense-small", "moe-small")
SCHEMES = (
    "awq-g64 awq-sym-g32 gptq-sym-g64 gptq-order-g32 gptq8-sym-g32 gptq8-order-g64 gptq8-row "
    "ct-sym-g32 ct-g64 ct-order-g32 ct8-sym-g128 ct8-g32 ct8-row ct8-order-g64 ct-w8a8"
).split()


@pytest.fixture(scope="session")
def written(tmp_path_factory):
    out = tmp_path_factory.mktemp("layouts")
    subprocess.run([PROGRAM, "--write", out], cwd=ROOT, check=True, timeout=120)
    assert sorted(p.name for p in out.iterdir() if p.suffix != ".f32") == sorted(f"{m}-{s}" for m in MODELS for s in SCHEMES)
    return out


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("model", MODELS)
def test_weights_are_those_that_were_quantized(written, model, scheme):
    folder = written / f"{model}-{scheme}"
    plain, tensors = layouts.read_folder(f"{folder}.f32"), layouts.read_folder(folder)
    modules, rest = layouts.quantized(folder, tensors)
    assert len(modules) >= 4 * 6
    assert sorted([m + ".weight" for m in modules] + rest) == sorted(plain)
    for base, w in modules.items():
        assert w.dtype == np.float32 and np.array_equal(w, plain[base + ".weight"]), base
    for name in rest:
        assert tensors[name].dtype == plain[name].dtype and tensors[name].tobytes() == plain[name].tobytes(), name


def as_readers_name_it(name):
    """The names that a reader which renames the outer parts and fuses neighbours asks for."""
    for fused, parts in {"qkv_proj": "qkv", "in_proj_ba": "ab", "gate_up_proj": ("gate", "up")}.items():
        for p in parts:
            one = f"in_proj_{p}" if fused == "in_proj_ba" else f"{p}_proj"
            if name.endswith("." + one):
                return ["language_model." + name, name[: -len(one)] + fused]
    return ["language_model." + name]


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("model", MODELS)
def test_config_names_what_was_left_alone(written, model, scheme):
    folder = written / f"{model}-{scheme}"
    q = json.loads((folder / "config.json").read_text())["quantization_config"]
    modules, rest = layouts.quantized(folder)
    plain = layouts.read_folder(f"{folder}.f32")
    head = {"lm_head"} if model == "dense-small" else set()  # tied: not stored, and yet a module that readers make
    linear = [n[:-7] for n in rest if n.endswith(".weight") and plain[n].ndim == 2 and not re.search("norm|embed|conv1d", n)]
    assert linear
    if q["quant_method"] == "gptq":
        rules = [r.removeprefix("-:") for r in q["dynamic"]]
        skipped = lambda n: any(re.match(r, n) for r in rules)
        for base in linear:
            assert all(skipped(n) for n in [base] + as_readers_name_it(base)), base
        for base in modules:
            assert not any(skipped(n) for n in [base, "language_model." + base]), base
        assert q["lm_head"] is False and q["desc_act"] == ("order" in scheme) and q["sym"] == ("sym" in scheme)
    elif q["quant_method"] == "awq":
        names = q["modules_to_not_convert"]  # matched as parts of a name
        assert set(names) == set(linear) | head and not any(n in base for n in names for base in modules)
    else:
        group = q["config_groups"]["group_0"]
        assert set(q["ignore"]) == set(linear) | head and group["targets"] == ["Linear"]
        assert q["format"] == group["format"] == ("int-quantized" if "w8a8" in scheme else "pack-quantized")
        assert (group["input_activations"] is not None) == ("w8a8" in scheme)


@pytest.mark.parametrize("model", MODELS)
def test_side_files_are_the_sources(written, model):
    source, folder = ROOT / "tests/golden/models" / model, written / f"{model}-awq-g64"
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json"):
        assert (folder / name).read_bytes() == (source / name).read_bytes()
    config, old = (json.loads((f / "config.json").read_text()) for f in (folder, source))
    del config["quantization_config"]
    assert config == old
    total = json.loads((folder / "model.safetensors.index.json").read_text())["metadata"]["total_size"]
    shards = sorted(folder.glob("model-*-of-*.safetensors"))
    heads = sum(8 + int(np.fromfile(s, dtype=np.uint64, count=1)[0]) for s in shards)
    assert len(shards) > 1 and total == sum(s.stat().st_size for s in shards) - heads


GOLDEN = [m + s for m in MODELS for s in ("-awq", "-gptq", "-gptq-actorder-asym", "-ct-sym-g32", "-ct-asym-g128")]


@pytest.mark.parametrize("name", GOLDEN)
def test_the_definitions_read_the_reference_folders(name):
    """layouts.py itself: folders that other programs' definitions made (tests/golden/make) come out within a step of the weights they were made of."""
    source = layouts.read_folder(ROOT / "tests/golden/models" / next(m for m in MODELS if name.startswith(m)))
    modules, _ = layouts.quantized(ROOT / "tests/golden/models" / name)
    for base, w in modules.items():
        want = source[base + ".weight"]
        step = (np.abs(want).max(axis=1, keepdims=True) * 2) / 7
        assert w.shape == want.shape and np.abs(w - want).max() > 0 and (np.abs(w - want) <= step).all(), base
