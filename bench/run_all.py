#!/usr/bin/env python3
"""Measures every speed that sheng promises and prints one table: row, target, measured (median and spread), met or not.

    python3 bench/run_all.py [--dir DIR] [--results DIR] [--only ROW,ROW] [--keep]
    python3 bench/run_all.py --quick          the script itself, on tiny models, in a minute or two: its figures mean nothing

Makes the checkpoints it needs (random weights, `sheng synth`) in --dir (default build/bench), each when its first row comes, and removes it after its
last one unless --keep is given; about 20 GB are there at most. Takes less than 45 minutes on two quiet cores. Writes into --results (default
bench/results/DATE-MACHINE) the table, each run behind it as CSV, and the machine; bench/results/README.md says what is where.

Shares of a limit are those of `sheng bench model`: of probes between the runs of that row. Comparisons (int4 and bf16, the server and the bench, sheng and
llama.cpp) take turns and give the median of the ratios of their rounds. Values in brackets are the least and the most.

Rows of --only: roofline decode together prefill depth server rest bf16 int4 moe peers peers-moe
"""
import argparse
import contextlib
import datetime
import json
import os
import pathlib
import random
import re
import shutil
import signal
import string
import subprocess
import sys
import tempfile
import time

from load import ask, free_port
from measure import (ROOT, Failed, Values, bench_model, cores, find_sheng, machine_text, remove, revision, row_of, run, run_json, say, synth, table,
                     write_csv)

GB = 10**9
DISK = 20 * GB
PROMPT, ANSWER = 64, 128  # tokens of the server's rows; the answer's tokens stand at PROMPT + ANSWER / 2 in the mean
KEPT = {"linear", "attention", "moe", "head"}  # kinds of a profile that are products with weights or with keys and values; all others are "the rest"

# name: shape, format, layers (0: all)
MODELS = {
    "0.8B-awq": ("0.8B", "awq", 0), "0.8B-bf16": ("0.8B", "bf16", 0), "0.8B-gguf": ("0.8B", "gguf-q4_0", 0), "4B-awq": ("4B", "awq", 0),
    "9B-awq": ("9B", "awq", 0), "35B-A3B-awq": ("35B-A3B", "awq", 8), "35B-A3B-gguf": ("35B-A3B", "gguf-q4_0", 8),
}


class Bench:
    """What the rows share: options, checkpoints, results so far."""

    def __init__(self, o):
        self.o, self.results, self.runs, self.rounds, self.machine, self.roofline = o, [], [], [], None, []
        self.repeat = (lambda n: 1) if o.quick else (lambda n: n)  # rounds and repeats
        self.known, self.times = {}, {}

    def model(self, name):
        """The checkpoint's folder or file, made when it is not there. A GGUF file has a folder too: its repacked weights lie beside it."""
        shape, form, layers = MODELS[name]
        if self.o.quick:
            shape, layers = "test-moe" if "A3B" in shape else "test", 0
        where = self.o.dir / name
        if form.startswith("gguf"):
            where = where / "model.gguf"
        if not where.exists():
            say(f"making {name}")
        return synth(self.o.sheng, shape, form, where, layers)

    def drop(self, name):
        if not self.o.keep:
            remove(self.o.dir / name)

    def bench(self, name, again=0, **what):
        """`sheng bench model`, kept: a row that needs a run which another made takes it. again: which of several equal runs."""
        key = (name, again, json.dumps(what, sort_keys=True))
        if key not in self.known:
            result = self.known[key] = bench_model(self.o.sheng, self.model(name), threads=self.o.threads, **what)
            self.runs += [(name, again, " ".join(what.get("more", ())), r, result) for r in result["rows"]]
        return self.known[key]

    def rounds_of(self, name, n, **what):
        return [self.bench(name, again=i, **what) for i in range(self.repeat(n))]

    def add(self, row, work, target, values, digits=1, unit="", note=""):
        """target: (">=" or "<=", number), held to the median; None: told only."""
        met = None if target is None else values.median >= target[1] if target[0] == ">=" else values.median <= target[1]
        self.results.append((row, work, target, values, digits, unit, met, note))
        say(f"{row}, {work}: {values.text(digits, unit)}")

    def missing(self, row, work, note):
        self.results.append((row, work, None, None, 0, "", None, note))
        say(f"{row}, {work}: not measured: {note}")


def shares(results, work):
    """Of several processes: each one's share. Of a single one: its median's, its slowest run's and its fastest run's."""
    rows = [row_of(r, work) for r in results]
    if len(rows) > 1:
        return Values(r["share_percent"] for r in rows)
    r = rows[0]
    return Values(r["share_percent"] * r[k] / r["tokens_per_s"] for k in ("tokens_per_s_min", "tokens_per_s", "tokens_per_s_max"))


def speed(results, work):
    return f"{Values(row_of(r, work)['tokens_per_s'] for r in results).median:.1f} tokens/s of {row_of(results[0], work)['limit']}"


# --- Rows of one model -----------------------------------------------------------------------------------------------


def decode_runs(b, name):
    return b.rounds_of(name, 3, depth=[0], seqs=[1, 16] if name == "0.8B-awq" else [], repeat=b.repeat(5))


def decode(b, name):
    runs = decode_runs(b, name)
    b.add("decode", f"{name}, 1 sequence at 0", (">=", 85), shares(runs, "decode 1 at 0"), unit="%", note=speed(runs, "decode 1 at 0"))


def together(b, name):
    runs = decode_runs(b, name)
    ratio = Values(row_of(r, "decode 16 at 256")["tokens_per_s"] / row_of(r, "decode 1 at 256")["tokens_per_s"] for r in runs)
    b.add("together", f"{name}, 16 sequences / 1, at 256", (">=", 3.2), ratio, 2, note=speed(runs, "decode 16 at 256"))


def prefill_run(b, name, tokens):
    big = tokens > 512 and name != "0.8B-awq" or name == "9B-awq"
    return b.bench(name, prefill=[tokens], repeat=b.repeat(3 if big else 5))


def prefill(b, name):
    for tokens in [512] if name == "9B-awq" else [512, 2048]:
        r = prefill_run(b, name, tokens)
        work = f"prefill {tokens}"
        b.add("prefill", f"{name}, {tokens} tokens", (">=", 45), shares([r], work), unit="%", note=speed([r], work))


def depth(b, name):
    """int8 keys and values beside bfloat16, taking turns."""
    types, at = ["bfloat16", "int8"], 16384
    if "int8" not in kv_types(b):
        b.missing("depth", f"{name}, KV in int8", "`sheng bench model` has no --kv-cache-dtype int8")
        types = ["bfloat16"]
    runs = {t: [] for t in types}
    for i in range(b.repeat(3)):
        for t in types:
            runs[t].append(b.bench(name, again=i, depth=[at], repeat=b.repeat(5), more=["--kv-cache-dtype", t]))
    for t in types:
        b.add("depth", f"{name}, 1 sequence at {at}, KV in {t}", (">=", 80), shares(runs[t], f"decode 1 at {at}"), unit="%",
              note=speed(runs[t], f"decode 1 at {at}"))


def kv_types(b):
    text = run([b.o.sheng, "bench", "model", "--help"])
    m = re.search(r"--kv-cache-dtype.*?\(([^()]*); default", text, re.S)
    return m[1].split("|") if m else []


def rest(b, name):
    """What neither products with weights nor attention nor experts take. Their own rounding of activations is inside linear, moe and head."""
    for work, result in [("prefill 512", prefill_run(b, name, 512)), ("decode 1 at 0", decode_runs(b, name)[0])]:
        p = next(p for p in result["profile"] if p["work"].startswith(work.split()[0]))
        kinds = {k: v for k, v in p.items() if k not in ("work", "ms") and isinstance(v, (int, float))}
        other = sum(v for k, v in kinds.items() if k not in KEPT)
        b.add("rest", f"{name}, {p['work']}", ("<=", 15), Values([other]), unit="%", note=", ".join(f"{k} {v:.1f}" for k, v in kinds.items() if v >= 0.05))


def bf16(b, name):
    runs = b.rounds_of(name, 3, depth=[0], repeat=b.repeat(5))
    b.add("bf16", f"{name}, 1 sequence at 0", (">=", 85), shares(runs, "decode 1 at 0"), unit="%", note=speed(runs, "decode 1 at 0"))
    r = b.bench(name, prefill=[512], repeat=b.repeat(5))
    b.add("bf16", f"{name}, prefill 512", (">=", 60), shares([r], "prefill 512"), unit="%", note=speed([r], "prefill 512"))


def moe(b, name):
    runs = b.rounds_of(name, 3, prefill=[512], depth=[0], repeat=b.repeat(3))
    b.add("moe", f"{name}, {MODELS[name][2]} layers, 1 sequence at 0", (">=", 80), shares(runs, "decode 1 at 0"), unit="%", note=speed(runs, "decode 1 at 0"))
    b.add("moe", f"{name}, {MODELS[name][2]} layers, prefill 512", (">=", 40), shares(runs, "prefill 512"), unit="%", note=speed(runs, "prefill 512"))


# --- Rows that need a server -----------------------------------------------------------------------------------------


@contextlib.contextmanager
def server(b, name):
    """The address of a server that answers."""
    model, port = b.model(name), free_port()
    with tempfile.TemporaryFile("w+", errors="replace") as log:
        command = [b.o.sheng, "serve", model, "--port", port, "--served-model-name", "m", "--threads", b.o.threads]
        p = subprocess.Popen([str(c) for c in command], stdout=log, stderr=log)
        try:
            began = time.monotonic()
            while ask(port, "GET", "/health") != 200:
                if p.poll() is not None or time.monotonic() - began > 300:
                    log.seek(0)
                    raise Failed(f"`{' '.join(map(str, command))}` did not get ready:\n{log.read()[-800:]}")
                time.sleep(0.05)
            yield f"http://127.0.0.1:{port}"
        finally:
            p.send_signal(signal.SIGTERM)
            try:
                p.wait(60)
            except subprocess.TimeoutExpired:
                p.kill()
                p.wait()


def request(b, url, prompt, answer, seed):
    """One request through `sheng bench serve`. Texts are new ones for each seed, or the prefix cache would know them; a synthetic tokenizer has a token a byte."""
    rng = random.Random(seed)
    text = "".join(rng.choice(string.ascii_letters) for _ in range(prompt))
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as f:
        f.write(json.dumps({"prompt": text, "max_tokens": answer}) + "\n")
        f.flush()
        command = [b.o.sheng, "bench", "serve", url, "--endpoint", "completions", "--input-len", f"file:{f.name}", "--ignore-eos", "--num-prompts", 1]
        row = run_json(command + ["--warmup", 0, "--json"])["rows"][0]
    if row["completed"] != 1 or row["total_output_tokens"] != answer or not prompt <= row["total_input_tokens"] <= prompt + 2:
        raise Failed(f"a request of {prompt} tokens for {answer} had {row['total_input_tokens']} and {row['total_output_tokens']}; failures: {row['failures']}")
    return row


def served(b, name):
    """A sequence's rate at the server beside the bench's, at the mean position of its answer."""
    at, ratio, rates = PROMPT + ANSWER // 2, Values(), Values()
    with server(b, name) as url:
        request(b, url, PROMPT, 8, -1)
        for i in range(b.repeat(5)):
            mine = row_of(b.bench(name, again=i, depth=[at], repeat=b.repeat(5)), f"decode 1 at {at}")["tokens_per_s"]
            rates.append(1000 / request(b, url, PROMPT, ANSWER, i)["tpot_ms"]["median"])
            ratio.append(rates[-1] / mine)
            b.rounds.append(("server", name, i + 1, "decode tokens/s", rates[-1], mine))
    b.add("server", f"{name}, 1 sequence, server / bench at {at}", (">=", 0.95), ratio, 3, note=f"{rates.text()} tokens/s")


def head_of(result):
    """The matrix of the logits, from what a step was counted with: "N MB of weights a step (M with logits)"."""
    m = re.search(r"([\d.]+) MB of weights a step \(([\d.]+) with logits\)", result["counted"])
    return f"head of {float(m[2]) - float(m[1]):.0f} MB in a step of {float(m[2]):.0f}" if m else result["counted"]


def int4(b, quant, full):
    """Decode: rates of both over bytes of both. First token: two servers, the same texts."""
    ratio, both = Values(), Values()
    for i in range(b.repeat(5)):
        a, f = (row_of(b.bench(n, again=10 + i, depth=[0], repeat=b.repeat(5)), "decode 1 at 0") for n in (quant, full))
        both.append(f["gbs"] * f["ms"] / (a["gbs"] * a["ms"]))
        ratio.append(a["tokens_per_s"] / f["tokens_per_s"])
        b.rounds.append(("int4", quant, i + 1, f"decode tokens/s, beside {full}", a["tokens_per_s"], f["tokens_per_s"]))
    head = "; ".join(f"{n}: {head_of(b.bench(n, again=10, depth=[0], repeat=b.repeat(5)))}" for n in (quant, full))
    b.add("int4", f"decode, {quant} / {full}, of the ratio of bytes", (">=", 90), Values(100 * r / w for r, w in zip(ratio, both)), unit="%",
          note=f"{ratio.median:.2f} times as fast, {both.median:.2f} times fewer bytes; {head}")
    tokens, first = 1280, Values()
    with server(b, quant) as fast, server(b, full) as slow:
        for i in range(-1, b.repeat(5)):
            q, f = (request(b, url, 64 if i < 0 else tokens, 1, i)["ttft_ms"]["median"] for url in (fast, slow))
            if i >= 0:
                first.append(f / q)
                b.rounds.append(("int4", quant, i + 1, f"time to first token of {tokens}, ms, beside {full}", q, f))
    b.add("int4", f"time to the first token of {tokens}, {full} / {quant}", (">=", 2), first, 2,
          note=f"{Values(r[4] for r in b.rounds if r[0] == 'int4' and 'first' in r[3]).text(0)} ms")


# --- The peer, the machine -------------------------------------------------------------------------------------------


def peers(b, name, row, goals):
    with tempfile.TemporaryDirectory() as d:
        out = pathlib.Path(d) / "peer.json"
        command = [sys.executable, ROOT / "bench/peers/compare.py", b.model(name), "--sheng", b.o.sheng, "--threads", b.o.threads, "--json", out,
                   "--rounds", b.repeat(5), "--csv", b.o.results / f"{row}.csv"]
        run(command + (["--venv", b.o.venv] if b.o.venv else []))
        for r, goal in zip(json.loads(out.read_text())["rows"], goals):
            b.add(row, f"{name}, {r['work']}, sheng / llama.cpp", goal and (">=", goal), Values(r["ratio"]), 2,
                  note=f"{Values(r['sheng']).median:.1f} and {Values(r['llama']).median:.1f} tokens/s")


def roofline(b, when):
    threads = sorted({1, b.o.threads})
    result = run_json([b.o.sheng, "bench", "roofline", "--json", "--threads", ",".join(map(str, threads)), "--repeat", b.repeat(15)])
    b.machine = b.machine or result["machine"]
    b.roofline += [(when, r["threads"], r["measure"], r["median"], r["min"], r["max"], r["unit"]) for r in result["rows"]]
    for r in result["rows"]:
        if r["threads"] == b.o.threads:
            b.results.append(("roofline", f"{r['measure']}, {r['threads']} threads, {when}", None, Values([r["min"], r["median"], r["max"]]), 1,
                              " " + r["unit"], None, ""))


# Rows in the order of their models, so that few of these lie on the disk at a time: row, models, function.
TASKS = [
    ("roofline", [], lambda b: roofline(b, "before")),
    *((row, ["0.8B-awq"], f) for row, f in [("decode", decode), ("together", together), ("prefill", prefill), ("depth", depth), ("server", served),
                                            ("rest", rest)]),
    ("bf16", ["0.8B-bf16"], bf16),
    ("int4", ["0.8B-awq", "0.8B-bf16"], int4),
    ("peers", ["0.8B-gguf"], lambda b, m: peers(b, m, "peers", (2.2, 1.4, 2.8))),
    *((row, ["4B-awq"], f) for row, f in [("decode", decode), ("prefill", prefill), ("depth", depth), ("server", served), ("rest", rest)]),
    ("prefill", ["9B-awq"], prefill),
    ("moe", ["35B-A3B-awq"], moe),
    ("peers-moe", ["35B-A3B-gguf"], lambda b, m: peers(b, m, "peers-moe", (2.2, 1.3, None))),
    ("roofline", [], lambda b: roofline(b, "after")),
]
ROWS = list(dict.fromkeys(t[0] for t in TASKS))


def measure(b, tasks):
    """Every task; one that fails is a row that says why, and the others go on."""
    for i, (row, models, f) in enumerate(tasks):
        began = time.monotonic()
        try:
            f(b, *models)
        except Failed as e:
            b.missing(row, ", ".join(models), str(e).replace("\n", " "))
        finally:
            b.times[row] = b.times.get(row, 0) + time.monotonic() - began
        for m in models:
            if not any(m in later[1] for later in tasks[i + 1 :]):
                b.drop(m)


# --- Results ---------------------------------------------------------------------------------------------------------


def shown(r):
    row, work, target, values, digits, unit, met, note = r
    return [row, work, f"{target[0]} {target[1]}{unit}" if target else "", values.text(digits, unit) if values else "not measured",
            "" if met is None else "yes" if met else "NO", note]


def write(b, complete):
    o, out = b.o, b.o.results
    m = b.machine
    if not m and b.known:
        m = b.machine = next(iter(b.known.values()))["machine"]
    about = [f"machine: {machine_text(m)}" if m else "machine: nothing was measured", f"program: {revision()}; {o.threads} threads; load at the end: "
             f"{os.getloadavg()[0]:.1f}", f"command: {' '.join(['bench/run_all.py', *sys.argv[1:]])}"]
    if not complete:
        about.append("INCOMPLETE: the run was interrupted")
    if o.quick:
        about.append("QUICK: tiny models, one run each; the figures mean nothing")
    seconds = "; ".join(f"{row} {t:.0f} s" for row, t in b.times.items())
    text = "\n".join(about) + "\n\n" + table(["row", "work", "target", "measured", "met", "beside it"], [shown(r) for r in b.results])
    text += f"\n\ntime: {seconds}; all: {sum(b.times.values()) / 60:.1f} minutes\n"
    out.mkdir(parents=True, exist_ok=True)
    (out / "table.md").write_text(text)
    write_csv(out / "table.csv", about, ["row", "work", "target", "unit", "median", "least", "most", "values", "met", "note"],
              [[row, work, f"{t[0]} {t[1]}" if t else "", unit.strip(), *([f"{x:.4g}" for x in (v.median, min(v), max(v))] if v else ["", "", ""]),
                len(v) if v else 0, "" if met is None else met, note] for row, work, t, v, _d, unit, met, note in b.results])
    keys = ["work", "tokens_per_s", "tokens_per_s_min", "tokens_per_s_max", "ms", "gops", "gbs", "share_percent", "limit", "read_gbs", "fp32_gflops",
            "u8s8_gops", "runs"]
    write_csv(out / "runs.csv", about, ["model", "run", "options", *keys, "load"],
              [[name, again, more, *(r[k] for k in keys), result["machine"]["load"]] for name, again, more, r, result in b.runs])
    write_csv(out / "rounds.csv", about, ["row", "model", "round", "measure", "value", "beside"], b.rounds)
    write_csv(out / "roofline.csv", about, ["when", "threads", "measure", "median", "min", "max", "unit"], b.roofline)
    print(text + f"\nwritten to {out}")


def default_results(quick):
    cpu = next((line.split(":")[1] for line in open("/proc/cpuinfo") if line.startswith("model name")), "unknown cpu")
    name = f"{datetime.date.today()}-{cpu.strip()}-{cores()}-cores"
    return ROOT / ("build/bench-quick" if quick else "bench/results") / re.sub(r"[^a-z0-9]+", "-", name.lower())


def options():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("--sheng", default=ROOT / "sheng")
    a.add_argument("--dir", type=pathlib.Path, help="where checkpoints are made (default: build/bench; build/bench-quick with --quick)")
    a.add_argument("--results", type=pathlib.Path, help="where results are written")
    a.add_argument("--venv", type=pathlib.Path, help="virtual environment of bench/peers/compare.py")
    a.add_argument("--threads", type=int, default=cores(), help="of everything (default: every usable core)")
    a.add_argument("--only", help="rows, separated by commas: " + ",".join(ROWS))
    a.add_argument("--keep", action="store_true", help="leave the checkpoints for the next run")
    a.add_argument("--quick", action="store_true", help="tiny models, one run of each: tests this script")
    o = a.parse_args()
    o.rows = o.only.split(",") if o.only else ROWS
    for r in o.rows:
        if r not in ROWS:
            a.error(f"--only: there is no row '{r}'; rows are {' '.join(ROWS)}")
    if o.threads < 1:
        a.error("--threads is at least 1")
    o.dir = o.dir or ROOT / ("build/bench-quick" if o.quick else "build/bench")
    o.results = o.results or default_results(o.quick)
    return o


def main():
    o = options()
    try:
        o.sheng = find_sheng(o.sheng)
        o.dir.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(o.dir).free
        if free < DISK and not o.quick:
            raise Failed(f"{o.dir} has {free / GB:.1f} GB free, and {DISK / GB:.0f} GB are needed: free some, or name another folder with --dir")
        if os.getloadavg()[0] > 0.3:
            say(f"the load is {os.getloadavg()[0]:.1f}: other programs run, so figures will be low and far apart")
    except (Failed, OSError) as e:
        sys.exit(f"run_all.py: {e}")
    b, complete = Bench(o), False
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        measure(b, [t for t in TASKS if t[0] in o.rows])
        complete = True
    except KeyboardInterrupt:
        say("interrupted: what was measured is written, checkpoints are left")
    finally:
        write(b, complete)
    sys.exit(0 if complete else 1)


if __name__ == "__main__":
    main()
