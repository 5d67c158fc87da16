#!/usr/bin/env python3
"""Compares quantized folders with what other programs make of them: their weights are unpacked (compressed-tensors: by that package's own decompressor;
AWQ and GPTQ: from the layouts' definitions, tests/quant/layouts.py), put into transformers in float32, and the logits held against `sheng logits --exact`.

    tools/check_quant_elsewhere.py [--sheng PROGRAM] [--bound X] [--load] DIR...

--load also lets transformers load a compressed-tensors folder by itself, which reads config.json's lists as well. Only dense models without int8 activations,
zero points (transformers 5.24 with compressed-tensors 0.20 makes room for unpacked ones and then finds those of a folder too small) or an order of columns.
Needs torch, transformers, safetensors and, for its folders, compressed-tensors. Exits 1 when a folder is further off than the bound.
"""
import argparse
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile

import numpy as np
import torch
import transformers
from safetensors.torch import load_file, save_file

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests/quant"))
import layouts  # noqa: E402

LENGTHS = (5, 33, 70)  # tokens of the prompts


def torch_folder(folder):
    index = folder / "model.safetensors.index.json"
    names = sorted(set(json.loads(index.read_text())["weight_map"].values())) if index.exists() else ["model.safetensors"]
    out = {}
    for name in names:
        out.update(load_file(folder / name))
    return out


def by_compressed_tensors(tensors, config):
    """{module: weight} by the package's decompressor, in float32: it computes in the type of the scales."""
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization import QuantizationConfig

    parsed = QuantizationConfig.model_validate(config)
    (scheme,) = parsed.config_groups.values()
    compressor = BaseCompressor.get_value_from_registry(parsed.format)
    modules = {}
    for name, t in tensors.items():
        base, end = name.rsplit(".", 1)
        if base + ".weight_scale" in tensors:
            modules.setdefault(base, {})[end] = t.float() if end == "weight_scale" else t
    return {base: compressor.decompress(parts, scheme)["weight"].float().contiguous() for base, parts in modules.items()}


def plain_tensors(folder, config):
    """All tensors of the folder, unpacked, under their modules' names; and who unpacked them."""
    tensors, q = torch_folder(folder), config["quantization_config"]
    arrays, rest = layouts.quantized(folder)
    weights, who = {base: torch.from_numpy(w) for base, w in arrays.items()}, "the layout's definition"
    ordered = any(n.endswith(".weight_g_idx") for n in tensors)
    if q["quant_method"] == "compressed-tensors" and not ordered:  # its decompressor does not look at an order of columns
        theirs = by_compressed_tensors(tensors, q)
        assert set(theirs) == set(weights)
        for base, w in theirs.items():
            assert torch.equal(w, weights[base]), f"{base}: the decompressor and the definition differ"
        weights, who = theirs, "compressed-tensors"
    return {**{base + ".weight": w for base, w in weights.items()}, **{n: tensors[n] for n in rest}}, len(weights), who


def load_plain(folder, config):
    tensors, n, who = plain_tensors(folder, config)
    plain = {k: v for k, v in config.items() if k != "quantization_config"}
    with tempfile.TemporaryDirectory() as tmp:
        save_file({k: v.contiguous() for k, v in tensors.items()}, pathlib.Path(tmp) / "model.safetensors", metadata={"format": "pt"})
        (pathlib.Path(tmp) / "config.json").write_text(json.dumps(plain))
        return load(tmp, config), n, who


def load(folder, config):
    cls = getattr(transformers, config["architectures"][0])
    model, info = cls.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True)
    missing = sorted(k for k in info["missing_keys"] if not k.startswith("model.visual."))  # no vision tower in the folder, none for text
    assert not missing, f"transformers misses {missing[:5]}"
    return model.eval()


def sheng_logits(program, folder, ids):
    with tempfile.TemporaryDirectory() as tmp:
        tmp = pathlib.Path(tmp)
        (tmp / "ids.json").write_text(json.dumps(ids))
        subprocess.run([program, "logits", folder, "--ids", tmp / "ids.json", "--out", tmp / "out.safetensors", "--all", "--exact", "--cache-dir", ""], check=True)
        return next(iter(layouts.read_safetensors(tmp / "out.safetensors").values()))


@torch.no_grad()
def furthest(model, wanted):
    """Largest difference of a logit over the prompts, and the largest logit."""
    worst = top = 0.0
    for ids, got in wanted:
        want = model(input_ids=torch.tensor([ids]), use_cache=False).logits[0].float().numpy()
        worst, top = max(worst, float(np.abs(got - want).max())), max(top, float(np.abs(want).max()))
    return worst, top


def check(folder, args):
    config = json.loads((folder / "config.json").read_text())
    vocab = config.get("text_config", config)["vocab_size"]
    rng = random.Random(1)
    wanted = [(ids, sheng_logits(args.sheng, folder, ids)) for ids in ([rng.randrange(vocab) for _ in range(n)] for n in LENGTHS)]
    model, n, who = load_plain(folder, config)
    worst, top = furthest(model, wanted)
    print(f"{folder.name}: {n} modules by {who}: logits within {worst:.2g} (largest {top:.3g})", flush=True)
    groups = config["quantization_config"].get("config_groups", {}).values()
    if args.load and groups and all(not g["input_activations"] and g["weights"]["symmetric"] and not g["weights"]["actorder"] for g in groups):
        own, _ = furthest(load(folder, config), wanted)
        print(f"{folder.name}: loaded by transformers itself: logits within {own:.2g}", flush=True)
        worst = max(worst, own)
    return worst <= args.bound


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sheng", default=os.environ.get("SHENG_BIN", ROOT / "sheng"))
    parser.add_argument("--bound", type=float, default=1e-4)
    parser.add_argument("--load", action="store_true")
    parser.add_argument("dirs", nargs="+", type=pathlib.Path)
    args = parser.parse_args()
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    bad = [d.name for d in args.dirs if not check(d, args)]
    print(f"{len(args.dirs) - len(bad)} within {args.bound:g}" + (f"; further off: {', '.join(bad)}" if bad else ""))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
