"""What bench/run_all.py, bench/accuracy.py and bench/peers/compare.py share: running sheng, medians with their spread, tables, CSV files."""
import csv
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent


class Failed(Exception):
    """A measurement that cannot be made: the message says what was found and what to do."""


class Values(list):
    """Measured values of one thing."""

    @property
    def median(self):
        return statistics.median(self)

    def text(self, digits=1, unit=""):
        """median (least to most)"""
        if len(self) == 1:
            return f"{self[0]:.{digits}f}{unit}"
        return f"{self.median:.{digits}f}{unit} ({min(self):.{digits}f} to {max(self):.{digits}f})"


def run(command, **options):
    """Standard output of a program; Failed with the end of what it said when it gave another status than 0."""
    command = [str(c) for c in command]
    try:
        r = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)
    except OSError as e:
        raise Failed(f"{command[0]} cannot be run: {e.strerror}") from None
    if r.returncode:
        raise Failed(f"`{' '.join(command)}` gave status {r.returncode}:\n{(r.stderr.strip() or r.stdout.strip())[-800:]}")
    return r.stdout


def run_json(command):
    said = run(command)
    try:
        return json.loads(said)
    except ValueError:
        raise Failed(f"`{' '.join(map(str, command))}` printed no JSON: {said[:200]!r}") from None


def find_sheng(path):
    path = pathlib.Path(path)
    if not path.is_file() or not os.access(path, os.X_OK):
        raise Failed(f"{path} is no program: build it with `make`, or name it with --sheng")
    return path.resolve()


def cores():
    return len(os.sched_getaffinity(0))


def sizes(values):
    return ",".join(map(str, values)) if values else "none"


def bench_model(sheng, model, prefill=(), depth=(), seqs=(), repeat=5, threads=0, cache=None, more=()):
    """The object that `sheng bench model --json` prints. The shares of its rows are of probes between the runs of that row."""
    command = [sheng, "bench", "model", model, "--json", "--repeat", repeat, "--threads", threads]
    command += ["--prefill", sizes(prefill), "--depth", sizes(depth), "--seqs", sizes(seqs)]
    return run_json(command + (["--cache-dir", cache] if cache else []) + list(more))


def row_of(result, work):
    for r in result["rows"]:
        if r["work"] == work:
            return r
    notes = "; ".join(str(n) for n in result.get("notes", []))
    raise Failed(f"`sheng bench model` measured no row '{work}'" + (f": {notes}" if notes else ""))


def synth(sheng, shape, form, out, layers=0):
    """Makes a checkpoint of random weights unless it is there, in a place of its own first: one that was cut off is made again."""
    if out.exists():
        return out
    out.parent.mkdir(parents=True, exist_ok=True)
    part = out.with_name("part-" + out.name)
    remove(part)
    run([sheng, "synth", shape, "--format", form, part] + (["--layers", layers] if layers else []))
    part.rename(out)
    return out


def remove(path):
    """A file, or a folder with all that is in it."""
    if path.is_dir() and not path.is_symlink():
        for p in path.iterdir():
            remove(p)
        path.rmdir()
    elif path.exists() or path.is_symlink():
        path.unlink()


def machine_text(m):
    return (f"{m['cpu']} ({m['arch']}), {m['cores']} cores, {m['memory_bytes'] / 2**30:.1f} GiB memory, {m['kernel']}; caches: {m['caches']}; "
            f"instructions: {m['isa']}; load when it began: {m['load']}")


def revision():
    """Of the program's source, where git knows it."""
    try:
        r = subprocess.run(["git", "-C", ROOT, "describe", "--always", "--dirty"], capture_output=True, text=True)
    except OSError:
        return "unknown"
    return r.stdout.strip() or "unknown"


def table(head, rows):
    """A table in markdown whose columns stand under each other."""
    rows = [[str(c) for c in r] for r in [head, *rows]]
    width = [max(len(r[i]) for r in rows) for i in range(len(head))]
    lines = ["| " + " | ".join(c.ljust(w) for c, w in zip(r, width)) + " |" for r in rows]
    return "\n".join([lines[0], "|" + "|".join("-" * (w + 2) for w in width) + "|", *lines[1:]])


def write_csv(path, comments, head, rows):
    """Comment lines, the head, the rows."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w", newline="") as f:
        for c in comments:
            f.write("# " + c.replace("\n", " ") + "\n")
        w = csv.writer(f, lineterminator="\n")
        w.writerow(head)
        w.writerows(rows)


BEGAN = time.monotonic()


def say(text):
    """Progress, to standard error."""
    print(f"[{time.monotonic() - BEGAN:6.0f} s] {text}", file=sys.stderr, flush=True)
