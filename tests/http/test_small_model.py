"""A model named sheng-small beside the program: what `serve` and `run` take when no MODEL is given."""
import os
import shutil
import subprocess

import pytest

import server
from server import BIN, DENSE, SLOWNESS, Server


@pytest.fixture
def program(tmp_path, monkeypatch):
    """A copy of the program that has no model beside it; Server starts it."""
    path = tmp_path / "sheng"
    shutil.copy(BIN, path)
    monkeypatch.setattr(server, "BIN", str(path))
    return path


def run(program):
    return subprocess.run([program, "run", "--temperature", "0", "--max-tokens", "8"], input="Hello!\n", capture_output=True, text=True, timeout=60 * SLOWNESS, cwd="/")


@pytest.mark.parametrize("place", ["models", "../share/sheng/models", "../../models"])
def test_run_takes_it_from_each_place_and_says_so(program, tmp_path, place):
    (tmp_path / "a/b").mkdir(parents=True)
    moved = shutil.move(program, tmp_path / "a/b/sheng")
    shutil.copytree(DENSE, os.path.normpath(tmp_path / "a/b" / place / "sheng-small"))
    r = run(moved)
    assert r.returncode == 0 and len(r.stdout) > 1
    assert r.stderr == "sheng run: no MODEL given, taking models/sheng-small beside the program\n"


def test_serve_takes_it_and_serves_it_under_its_name(program, tmp_path):
    shutil.copytree(DENSE, tmp_path / "models/sheng-small")
    s = Server(None)
    assert "no MODEL given, taking models/sheng-small" in s.log()
    assert [m["id"] for m in s.get("/v1/models").json()["data"]] == ["sheng-small"]
    assert s.stop() == 0


@pytest.mark.parametrize("command", ["serve", "run"])
def test_without_it_the_error_says_what_a_model_is_and_where_it_was_looked_for(program, tmp_path, command):
    r = subprocess.run([program, command], input="", capture_output=True, text=True, timeout=60 * SLOWNESS)
    assert r.returncode == 2 and r.stdout == ""
    assert "MODEL is missing: a Hugging Face folder, a .gguf file or the name of a pulled model" in r.stderr
    assert str(tmp_path / "models/sheng-small") in r.stderr and "share/sheng/models/sheng-small" in r.stderr
