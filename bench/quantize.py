"""Quantizes a model in many ways and measures each: the tables of docs/quantization.md.

    quantize.py MODEL OUT_DIR [--sheng PROGRAM] [--calib FILE] [--text FILE] [--tasks FILE] [--groups 128,64,32] [--only NAMES] [--samples N] [--windows N]

MODEL: a Hugging Face folder. Folders that are in OUT_DIR already are measured again, not made again. Prints a table in markdown: size of the weights, bits per quantized weight, perplexity,
KL(reference || quantized), equal first choices, tasks answered rightly, seconds and peak memory of the quantization. AWQ's KL is also given as a share of rounding to nearest's.
"""
import argparse
import json
import os
import re
import subprocess
import sys


def variants(groups):
    yield "INT8, a scale per row", ["--method", "int8"]
    for g in groups:
        yield f"RTN-4 g{g}", ["--method", "rtn", "--q-group-size", g]
        yield f"GPTQ-4 g{g}", ["--method", "gptq", "--format", "gptq", "--zero-point", "true", "--q-group-size", g]
        yield f"AWQ-4 g{g}", ["--method", "awq", "--q-group-size", g]
        yield f"RTN-4 g{g} symmetric", ["--method", "rtn", "--q-group-size", g, "--zero-point", "false"]
        yield f"AWQ-4 g{g} symmetric", ["--method", "awq", "--q-group-size", g, "--zero-point", "false"]
        yield f"RTN-4 g{g} power of two", ["--method", "rtn", "--q-group-size", g, "--zero-point", "false", "--pow2-scales"]
        yield f"AWQ-4 g{g} power of two", ["--method", "awq", "--q-group-size", g, "--zero-point", "false", "--pow2-scales"]


def chosen(names, only):
    """The rows that --only names: each word is a row's whole name, or else a part of names, in any case; one that fits none is an error."""
    rows = set()
    for word in only.split("|"):
        low = word.strip().lower()
        found = {n for n in names if n.lower() == low} or {n for n in names if low and low in n.lower()}
        if not found:
            sys.exit(f"quantize.py: --only '{word}' is no row's name and no part of one; the rows are: {', '.join(names)}")
        rows |= found
    return rows


def run(command):
    r = subprocess.run(command, capture_output=True, text=True)
    if r.returncode:
        sys.exit(f"{' '.join(command)}: {r.stderr.strip()[-600:]}")
    return r.stdout


def weights(folder):
    return sum(os.path.getsize(os.path.join(folder, f)) for f in os.listdir(folder) if f.endswith(".safetensors"))


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("model")
    p.add_argument("out")
    p.add_argument("--sheng", default="./sheng")
    p.add_argument("--calib")
    p.add_argument("--text")
    p.add_argument("--tasks")
    p.add_argument("--groups", default="128,64,32")
    p.add_argument("--only", metavar="NAMES", help="rows to make, separated by |: the whole name of a row chooses that row alone ('AWQ-4 g64'), anything else all rows whose "
                   "names it is a part of ('symmetric', 'g32'); the reference is always measured")
    p.add_argument("--samples", default="32", help="calibration sequences")
    p.add_argument("--windows", default="0", help="windows of the text; 0: all")
    a = p.parse_args()
    log_file = os.path.join(a.out, "log.json")
    log = json.load(open(log_file)) if os.path.exists(log_file) else {}
    rows = []
    rows_of = dict(variants(a.groups.split(",")))
    wanted = chosen(list(rows_of), a.only) if a.only else set(rows_of)
    os.makedirs(a.out, exist_ok=True)
    for name, options in [("reference", None)] + list(rows_of.items()):
        if options is not None and name not in wanted:
            continue
        folder = a.model if options is None else os.path.join(a.out, re.sub(r"[^a-z0-9]+", "-", name.lower()))
        if options is not None and not os.path.exists(folder):
            command = [a.sheng, "quantize", "--model-path", a.model, "--output-path", folder, "--samples", a.samples, "--eval-samples", "0", "--resume", *options]
            command += ["--calib-data", a.calib] if a.calib else ["--own-samples", "4"]
            said = run(command)
            m = re.search(r"at ([\d.]+) bits.*?; (\d+) s, at most ([\d.]+ \w+)", said)
            log[name] = {"bits": m[1], "seconds": m[2], "memory": m[3]}
            json.dump(log, open(log_file, "w"), indent=1)
        result = os.path.join(a.out, os.path.basename(folder) + ".json")
        command = [a.sheng, "eval", folder, "--exact", "--json", result, "--samples", a.windows, "--prompts", "8"]
        command += ["--against", a.model] if options is not None else []
        command += ["--text", a.text] if a.text else []
        command += ["--tasks", a.tasks] if a.tasks else []
        run(command)
        rows.append((name, weights(folder), log.get(name, {}), json.load(open(result))))
        print(f"{name} measured", file=sys.stderr, flush=True)
    show(rows)


def answered(result):
    groups = result.get("tasks") or []
    n = sum(g["exact"]["n"] for g in groups)
    return f"{sum(round(g['exact']['model'] * g['exact']['n']) for g in groups)}/{n}" if n else ""


def show(rows):
    kl = {name: r["kl"]["mean"] for name, _, _, r in rows if r.get("kl")}
    print("| weights | MB | bits | perplexity | KL mean | KL 99% | of RTN's | same first choice | tasks right | seconds | memory |\n|---|---|---|---|---|---|---|---|---|---|---|")
    for name, size, log, r in rows:
        k = r.get("kl")
        rtn = re.sub(r"^(AWQ|GPTQ)", "RTN", name)
        share = f"{kl[name] / kl[rtn]:.2f}" if k and rtn != name and rtn in kl else ""
        right = answered(r)
        print(f"| {name} | {size / 1e6:.1f} | {log.get('bits', '')} | {r['model']['perplexity']:.3f} | {k['mean']:.4f} | {k['p99']:.3f} | {share} | {r['top1_agreement'] * 100:.1f}% | {right} | {log.get('seconds', '')} | {log.get('memory', '')} |"
              if k else f"| {name} | {size / 1e6:.1f} | | {r['model']['perplexity']:.3f} | | | | | {right} | | |")


main()
