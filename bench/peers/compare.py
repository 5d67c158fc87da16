#!/usr/bin/env python3
"""Measures sheng beside llama.cpp: the same GGUF file, the same work, the same number of threads, taking turns in one run.

    python3 bench/peers/compare.py MODEL.gguf [--threads N] [--rounds N] [--csv FILE] [--json FILE]
    python3 bench/peers/compare.py MODEL.gguf --tune        which settings are llama.cpp's best here

Makes a virtual environment with llama.cpp from PyPI first (--venv DIR, default build/peers/PEER). Rows:

  prefill N        a prompt of N random tokens into an empty memory, in steps of at most 512, with the logits of its last row
  decode 1 at D    one sequence draws a token at position D (llama.cpp: at D and on), its logits read
  decode S at D    S sequences draw a token each in one step, all at D, all their logits read

Before anything is timed, both compute the logits of one prompt; when these differ by more than rounding, the run ends. README.md beside this file says
what is compared and why so.
"""
import argparse
import array
import json
import math
import os
import pathlib
import random
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from measure import ROOT, Failed, Values, bench_model, cores, find_sheng, machine_text, revision, row_of, run, say, table, write_csv  # noqa: E402

PACKAGES = {"xllamacpp": "2026.10.11549", "llama-cpp-python": "0.3.36"}
MODULES = {"xllamacpp": "xllamacpp", "llama-cpp-python": "llama_cpp"}
FLASH = {"auto": -1, "off": 0, "on": 1}
RUN_SECONDS = 0.45  # of drawing in one round; sheng's side is three runs of 0.15 s
# Correlation of logits from which on both compute the same model. Random weights carry every rounding on: after 24 layers sheng and llama.cpp, which round
# activations to int8 each in its own way, have 0.987, each of them and float32 0.98, llama.cpp and itself with its repacking off 0.995. With experts, where a rounding can choose another, it was 0.969. Another model: 0.
SAME = 0.9


# --- The peer --------------------------------------------------------------------------------------------------------


def installed(python, peer):
    code = f"import importlib.metadata as m, importlib as i; i.import_module('{MODULES[peer]}'); print(m.version('{peer}'))"
    r = subprocess.run([python, "-c", code], capture_output=True, text=True)
    return r.stdout.strip().splitlines()[-1] if r.returncode == 0 and r.stdout.strip() else None


def environment(folder, peer):
    """The Python of a virtual environment that has the peer at the pinned version; made when the folder is not there."""
    python, wanted = folder / "bin/python", PACKAGES[peer]
    if folder.exists() and not python.exists():
        raise Failed(f"{folder} is no virtual environment: name another with --venv, or remove it")
    if not python.exists():
        say(f"making {folder}")
        folder.parent.mkdir(parents=True, exist_ok=True)
        run([sys.executable, "-m", "venv", folder])
    found = installed(python, peer)
    if found is None:
        say(f"installing {peer}=={wanted}" + (": built from source, which takes long" if peer == "llama-cpp-python" else ""))
        binary = ["--only-binary", ":all:"] if peer == "xllamacpp" else []
        try:
            run([python, "-m", "pip", "install", "--disable-pip-version-check", *binary, f"{peer}=={wanted}"])
        except Failed as e:
            raise Failed(f"{peer} was not installed in {folder}; without a network, copy an environment that has it and name it with --venv.\n{e}") from None
        found = installed(python, peer)
    if found != wanted:
        raise Failed(f"{folder} has {peer} {found or 'that cannot be imported'}, not {wanted}: remove the folder or name another with --venv")
    return python


class Peer:
    """The process that drives llama.cpp."""

    def __init__(self, python, peer):
        self.err = tempfile.TemporaryFile("w+", errors="replace")
        script = pathlib.Path(__file__).resolve().parent / "llama.py"
        self.p = subprocess.Popen([python, script, peer], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.err, text=True)

    def ask(self, do, **o):
        try:
            self.p.stdin.write(json.dumps(dict(o, do=do)) + "\n")
            self.p.stdin.flush()
            said = self.p.stdout.readline()
        except BrokenPipeError:
            said = ""
        if not said:
            self.err.seek(0)
            raise Failed(f"llama.cpp ended with status {self.p.wait()} at '{do}': {self.err.read().strip()[-800:] or 'it said nothing'}")
        answer = json.loads(said)
        if "error" in answer:
            raise Failed(f"llama.cpp, '{do}': {answer['error']}")
        return answer

    def end(self):
        self.p.stdin.close()
        try:
            self.p.wait(30)
        except subprocess.TimeoutExpired:
            self.p.kill()
            self.p.wait()


# --- One measurement of a row, in tokens per second ------------------------------------------------------------------


def rows_of(o):
    """name: (prompt, sequences)"""
    rows = {f"prefill {o.prompt}": (o.prompt, 1), f"decode 1 at {o.depth}": (0, 1), f"decode {o.seqs} at {o.depth}": (0, o.seqs)}
    return {n: r for n, r in rows.items() if o.rows is None or n.split()[0] == o.rows}


def of_sheng(o, name):
    prompt, seqs = rows_of(o)[name]
    work = dict(prefill=[prompt]) if prompt else dict(depth=[o.depth]) if seqs == 1 else dict(seqs=[seqs])
    result = bench_model(o.sheng, o.model, repeat=1 if prompt else 3, threads=o.threads, cache=o.cache, **work)
    return row_of(result, name)["tokens_per_s"], result


def context(peer, o, settings, seqs):
    room = max(o.prompt, o.depth + 256)
    return peer.ask("context", threads=settings["threads"], seqs=seqs, room=room, batch=settings["batch"], flash=FLASH[settings["flash"]],
                    unified=settings["unified"])


def of_peer(peer, o, settings, name):
    prompt, seqs = rows_of(o)[name]
    context(peer, o, settings, seqs)
    if prompt:
        return prompt / peer.ask("prefill", tokens=prompt)["seconds"]
    r = peer.ask("decode", depth=o.depth, seconds=RUN_SECONDS)
    return seqs * r["steps"] / r["seconds"]


# --- Do both compute the same? ---------------------------------------------------------------------------------------


def correlation(a, b):
    n, ma, mb = len(a), math.fsum(a) / len(a), math.fsum(b) / len(b)
    ab, aa, bb = (math.fsum((x - mx) * (y - my) for x, y in zip(p, q)) / n for p, mx, q, my in ((a, ma, b, mb), (a, ma, a, ma), (b, mb, b, mb)))
    return ab / math.sqrt(aa * bb) if aa > 0 and bb > 0 else math.nan


def same_logits(peer, o, settings):
    """Correlation of the logits after one prompt of 64 tokens."""
    rng = random.Random(7)
    ids = [rng.randrange(256) for _ in range(64)]
    with tempfile.TemporaryDirectory() as d:
        d = pathlib.Path(d)
        (d / "ids").write_text(json.dumps(ids))
        run([o.sheng, "logits", o.model, "--ids", d / "ids", "--out", d / "sheng"] + (["--cache-dir", o.cache] if o.cache else []))
        context(peer, o, settings, 1)
        vocabulary = peer.ask("logits", ids=ids, out=str(d / "peer"))["vocabulary"]
        mine, theirs = array.array("f"), array.array("f", (d / "peer").read_bytes())
        data = (d / "sheng").read_bytes()
        mine.frombytes(data[len(data) - 4 * vocabulary :])  # the last row of a safetensors file with one tensor
    r = correlation(mine, theirs)
    if not r >= SAME:
        raise Failed(f"the logits of sheng and of llama.cpp have a correlation of {r:.4f}: they do not compute the same model, so nothing was compared")
    return r


# --- The two programs ------------------------------------------------------------------------------------------------


def compare(peer, o, settings):
    names, sheng, other, ratio, last = list(rows_of(o)), {}, {}, {}, None
    of_peer(peer, o, settings, names[0])  # touches its memory; sheng has a run of its own for that
    for i in range(o.rounds):
        for name in names:
            sides = {}
            for side in ("sheng", "peer") if i % 2 == 0 else ("peer", "sheng"):
                if side == "sheng":
                    sides[side], last = of_sheng(o, name)
                else:
                    sides[side] = of_peer(peer, o, settings, name)
            sheng.setdefault(name, Values()).append(sides["sheng"])
            other.setdefault(name, Values()).append(sides["peer"])
            ratio.setdefault(name, Values()).append(sides["sheng"] / sides["peer"])
            say(f"round {i + 1} of {o.rounds}, {name}: sheng {sides['sheng']:.1f}, llama.cpp {sides['peer']:.1f} tokens/s")
    return names, sheng, other, ratio, last


def settings_to_try(best):
    yield "chosen", best
    for flash in FLASH:
        yield f"flash attention {flash}", dict(best, flash=flash)
    for batch in (64, 128, 256, 512):
        yield f"steps of {batch}", dict(best, batch=batch)
    yield "one memory for all sequences" if not best["unified"] else "a memory for each sequence", dict(best, unified=not best["unified"])
    for threads in sorted({1, best["threads"] // 2, best["threads"] * 2} - {0, best["threads"]}):
        yield f"{threads} threads", dict(best, threads=threads)


def tune(peer, o, best):
    """llama.cpp alone: every setting in every round, so that a busy minute falls on all of them; then without repacking, which needs the model anew."""
    found, names = {}, list(rows_of(o))
    tried = list(settings_to_try(best))

    def measure(label, settings):
        for name in names:
            found.setdefault(label, {}).setdefault(name, Values()).append(of_peer(peer, o, settings, name))

    for i in range(o.rounds):
        for label, settings in tried:
            measure(label, settings)
        say(f"round {i + 1} of {o.rounds}")
    peer.ask("open", model=str(o.model), repack=False)
    for _ in range(o.rounds):
        measure("without repacking", best)
    print(table(["llama.cpp, tokens/s", *names], [[label, *(rows[n].text() for n in names)] for label, rows in found.items()]))


def report(o, about, opened, same, settings, measured):
    names, sheng, other, ratio, last = measured
    facts = [
        f"machine: {machine_text(last['machine'])}; load at the end: {os.getloadavg()[0]:.1f}",
        f"model: {last['model']}",
        f"sheng: {revision()}; {last['computed']}",
        f"llama.cpp: {about['version']}; {about['system'].strip()}",
        f"llama.cpp: {'; '.join(opened['buffers'])}",
        f"llama.cpp: {settings['threads']} thread{'s' * (settings['threads'] > 1)}, steps of at most {settings['batch']}, flash attention {settings['flash']}, "
        f"{'one memory for all sequences' if settings['unified'] else 'a memory for each sequence'}, KV in float16",
        f"correlation of their logits: {same:.5f}; {o.rounds} rounds, taking turns; median (least to most)",
    ]
    print("\n".join(facts) + "\n")
    print(table(["tokens/s", "sheng", "llama.cpp", "sheng / llama.cpp"],
                [[n, sheng[n].text(), other[n].text(), ratio[n].text(2)] for n in names]))
    if o.csv:
        write_csv(o.csv, facts, ["work", "round", "sheng_tokens_per_s", "llama_tokens_per_s", "ratio"],
                  [[n, i + 1, f"{a:.3f}", f"{b:.3f}", f"{a / b:.3f}"] for n in names for i, (a, b) in enumerate(zip(sheng[n], other[n]))])
    if o.json:
        o.json.parent.mkdir(parents=True, exist_ok=True)
        rows = [{"work": n, "sheng": sheng[n], "llama": other[n], "ratio": ratio[n]} for n in names]
        o.json.write_text(json.dumps({"facts": facts, "rows": rows}, indent=1))


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("model", type=pathlib.Path)
    a.add_argument("--sheng", default=ROOT / "sheng")
    a.add_argument("--peer", choices=list(PACKAGES), default="xllamacpp")
    a.add_argument("--venv", type=pathlib.Path, help="a virtual environment with the peer; made when it is not there (default: build/peers/PEER)")
    a.add_argument("--cache", help="where sheng keeps repacked weights (default: its own)")
    a.add_argument("--threads", type=int, default=cores(), help="of both (default: every usable core)")
    a.add_argument("--rounds", type=int, default=5)
    a.add_argument("--prompt", type=int, default=512)
    a.add_argument("--depth", type=int, default=256)
    a.add_argument("--seqs", type=int, default=16)
    a.add_argument("--rows", choices=["prefill", "decode"], help="only these")
    a.add_argument("--batch", type=int, default=256, help="llama.cpp: tokens of a prompt in one step (its -ub)")
    a.add_argument("--flash", choices=list(FLASH), default="auto", help="llama.cpp: flash attention")
    a.add_argument("--unified", action="store_true", help="llama.cpp: one memory for all sequences")
    a.add_argument("--tune", action="store_true", help="llama.cpp alone, with other settings beside the chosen ones")
    a.add_argument("--csv", type=pathlib.Path)
    a.add_argument("--json", type=pathlib.Path)
    o = a.parse_args()
    if min(o.threads, o.rounds, o.prompt, o.batch) < 1 or o.seqs < 2 or o.depth < 1:
        a.error("--threads, --rounds, --prompt, --batch and --depth are at least 1, --seqs at least 2")
    if o.depth != 256 and o.rows != "prefill":
        a.error("sheng's sequences that draw together stand at position 256: leave --depth out")
    peer = None
    try:
        o.sheng = find_sheng(o.sheng)
        if not o.model.is_file():
            raise Failed(f"{o.model} is no file; `sheng synth 0.8B --format gguf-q4_0 {o.model}` makes one")
        python = environment(o.venv or ROOT / "build/peers" / o.peer, o.peer)
        settings = {"threads": o.threads, "batch": o.batch, "flash": o.flash, "unified": o.unified}
        peer = Peer(python, o.peer)
        about = peer.ask("about")
        opened = peer.ask("open", model=str(o.model), repack=True)
        if o.tune:
            print(f"{about['version']}; {about['system'].strip()}; {'; '.join(opened['buffers'])}; load {os.getloadavg()[0]:.1f}\n")
            return tune(peer, o, settings)
        report(o, about, opened, same_logits(peer, o, settings), settings, compare(peer, o, settings))
    except Failed as e:
        sys.exit(f"compare.py: {e}")
    except KeyboardInterrupt:
        sys.exit(130)
    finally:
        if peer:
            peer.end()


if __name__ == "__main__":
    main()
