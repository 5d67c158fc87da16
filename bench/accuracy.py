"""What the default mode's rounding changes: each model in default mode against itself with --exact. The table of docs/numerics.md.

    accuracy.py [MODEL ...] [--sheng PROGRAM] [--heads auto,int8,int6,int4] [--kv auto,int8] [--windows N] [--threads N] [--out FOLDER]

Without MODEL: the two small models of this repository, as they are and rounded to 4 bits (to nearest, groups of 32, 64 and 128, made in FOLDER, by default build/accuracy), and
models/smollm2 when it was fetched. Prints a table in markdown: KL(exact || default) in nats, mean and 99th percentile, equal first choices, and perplexity against exact's.
"""
import argparse
import glob
import json
import os
import sys
import tempfile

from measure import ROOT, Failed, find_sheng, run


def defaults(a):
    for name in ("sheng-small", "sheng-small-moe"):
        model = os.path.join(ROOT, "models", name)
        yield model
        for group in ("32", "64", "128"):
            out = os.path.join(a.out, f"{name}-int4-g{group}")
            if not os.path.exists(out):
                run([a.sheng, "quantize", "--model-path", model, "--output-path", out, "--method", "rtn", "--q-group-size", group, "--eval-samples", "1"])
            yield out
    yield from glob.glob(os.path.join(ROOT, "models", "smollm2", "*.gguf"))


def measure(a, model, head, kv):
    with tempfile.TemporaryDirectory() as folder:
        out = os.path.join(folder, "r.json")
        run([a.sheng, "eval", model, "--against-exact", "--head", head, "--kv-cache-dtype", kv, "--samples", str(a.windows), "--prompts", "0", "--threads", str(a.threads),
             "--json", out])
        with open(out) as f:
            return json.load(f)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("model", nargs="*")
    p.add_argument("--sheng", default=os.path.join(ROOT, "sheng"))
    p.add_argument("--heads", default="auto")
    p.add_argument("--kv", default="auto")
    p.add_argument("--windows", type=int, default=0, help="windows of 512 tokens of the text in the program; 0: all")
    p.add_argument("--threads", type=int, default=0)
    p.add_argument("--out", default=os.path.join(ROOT, "build", "accuracy"))
    a = p.parse_args()
    a.sheng = find_sheng(a.sheng)
    os.makedirs(a.out, exist_ok=True)
    print("| model | head | KV | KL, mean | 99% | equal first choices | perplexity | exact's |\n|---|---|---|---|---|---|---|---|")
    for model in a.model or defaults(a):
        for head in a.heads.split(","):
            for kv in a.kv.split(","):
                r = measure(a, model, head, kv)
                print(f"| {os.path.basename(model.rstrip('/'))} | {head} | {kv} | {r['kl']['mean']:.5f} | {r['kl']['p99']:.4f} | {100 * r['top1_agreement']:.2f}% "
                      f"| {r['model']['perplexity']:.3f} | {r['reference']['perplexity']:.3f} |", flush=True)


if __name__ == "__main__":
    try:
        main()
    except Failed as e:
        sys.exit(f"accuracy.py: {e}")
