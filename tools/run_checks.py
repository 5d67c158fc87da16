#!/usr/bin/env python3
"""Runs test programs and adds them up.

  run_checks.py [--jobs N] [--timeout SECONDS] PROGRAM [ARG...] [-- PROGRAM [ARG...]] ...

Each program is a cmocka binary, or prints "N passed, N failed[, N skipped]" on a line of its own. A program that fails, crashes, hangs or prints no count is a
failure; its whole output is shown with the command that runs it again. Ends with the line "N passed, N failed, N skipped" and status 0 or 1."""
import concurrent.futures
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time

CMOCKA_RUN = re.compile(r"^\[==========\] (?:.*: )?(\d+) test\(s\) run\.", re.M)
CMOCKA = {"passed": re.compile(r"^\[  PASSED  \] (\d+) test\(s\)", re.M), "failed": re.compile(r"^\[  FAILED  \] (?:.*: )?(\d+) test\(s\), listed", re.M),
          "skipped": re.compile(r"^\[  SKIPPED \] (?:.*: )?(\d+) test\(s\), listed", re.M)}
PLAIN = re.compile(r"^(\d+) passed, (\d+) failed(?:, (\d+) skipped)?\s*$", re.M)


def count(output):
    """(passed, failed, skipped) from a program's output, or None when it printed no count."""
    if CMOCKA_RUN.search(output):
        sums = {k: sum(int(n) for n in rx.findall(output)) for k, rx in CMOCKA.items()}
        return sums["passed"], sums["failed"], sums["skipped"]
    plain = PLAIN.findall(output)
    if plain:
        return tuple(sum(int(x[i] or 0) for x in plain) for i in range(3))
    return None


RUNNING = set()
STARTING = threading.RLock()


def interrupted(signum, _frame):
    """Ctrl-C or SIGTERM: programs have sessions of their own, so nobody else ends them."""
    with STARTING:  # and never gives it back: nothing more starts
        for p in RUNNING:
            if p.returncode is None:
                try:
                    os.killpg(p.pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
        print("interrupted", file=sys.stderr, flush=True)
        os._exit(128 + signum)


def run(cmd, timeout):
    start = time.monotonic()
    with STARTING:
        p = subprocess.Popen(cmd, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", start_new_session=True)
        RUNNING.add(p)
    try:
        out, _ = p.communicate(timeout=timeout)
        status = p.returncode
    except subprocess.TimeoutExpired:
        os.killpg(p.pid, signal.SIGKILL)
        out, _ = p.communicate()
        status = f"ran longer than {timeout} s"
    with STARTING:
        RUNNING.discard(p)
    return cmd, status, out, time.monotonic() - start


def main():
    args = sys.argv[1:]
    jobs, timeout, commands = 1, 600.0, [[]]
    while args and args[0] in ("--jobs", "--timeout"):
        if args[0] == "--jobs":
            jobs = int(args[1])
        else:
            timeout = float(args[1])
        args = args[2:]
    for a in args:
        if a == "--":
            commands.append([])
        else:
            commands[-1].append(a)
    commands = [c for c in commands if c]
    if not commands:
        sys.exit(__doc__)
    totals = [0, 0, 0]
    for s in (signal.SIGINT, signal.SIGTERM):
        signal.signal(s, interrupted)
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        for cmd, status, out, seconds in pool.map(lambda c: run(c, timeout), commands):
            counts = count(out)
            ok = status == 0 and counts is not None and counts[1] == 0
            if counts is None or (not ok and counts[1] == 0):
                counts = (counts[0] if counts else 0, 1, counts[2] if counts else 0)
            totals = [a + b for a, b in zip(totals, counts)]
            note = f", {counts[2]} skipped" if counts[2] else ""
            print(f"{'ok  ' if ok else 'FAIL'} {cmd[0]}  {counts[0]} passed{note}  {seconds:.1f} s", flush=True)
            if not ok:
                why = status if isinstance(status, str) else f"status {status}"
                print(f"---- {why}; run again: {shlex.join(cmd)}\n{out}\n----", flush=True)
            elif counts[2]:
                for line in out.splitlines():
                    if re.search(r"\bskip", line, re.I) and not line.startswith("["):
                        print(f"     {line.strip()}", flush=True)
    print(f"{totals[0]} passed, {totals[1]} failed, {totals[2]} skipped", flush=True)
    sys.exit(1 if totals[1] or not totals[0] else 0)


if __name__ == "__main__":
    main()
