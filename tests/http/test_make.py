"""What `make` says on a machine that lacks the libraries: the line that installs them, and nothing is compiled."""
import os
import pathlib
import subprocess

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
