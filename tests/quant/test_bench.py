"""bench/quantize.py chooses the rows that are asked for."""
import os
import pathlib
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
SHENG = str(ROOT / os.environ.get("SHENG_BIN", "build/release/sheng"))


def bench(out, only):
    command = [sys.executable, ROOT / "bench/quantize.py", ROOT / "models/sheng-small", out, "--sheng", SHENG, "--groups", "64,32", "--windows", "1", "--samples", "1"]
    return subprocess.run([*command, "--only", only], capture_output=True, text=True, timeout=300)


@pytest.mark.parametrize("only, rows", [
    ("RTN-4 g64", ["RTN-4 g64"]),  # and not "RTN-4 g64 symmetric"
    ("rtn-4 g32|INT8, a scale per row", ["INT8, a scale per row", "RTN-4 g32"]),
    ("RTN-4 g64 |RTN-4 g32 p", ["RTN-4 g64", "RTN-4 g32 power of two"]),
    ("g64 sym", ["RTN-4 g64 symmetric", "AWQ-4 g64 symmetric"]),
])
def test_a_whole_name_is_one_row_and_a_part_all_that_have_it(tmp_path, only, rows):
    r = bench(tmp_path / "out", only)
    assert r.returncode == 0, r.stderr
    assert re.findall(r"^(.*) measured$", r.stderr, re.M) == ["reference", *rows]
    assert [line.split(" | ")[0] for line in r.stdout.splitlines()[2:]] == ["| reference", *(f"| {row}" for row in rows)]


def test_a_row_that_is_not_there_is_an_error_that_lists_those_that_are(tmp_path):
    r = bench(tmp_path / "out", "RTN-4 g128")
    assert r.returncode == 1
    assert "'RTN-4 g128' is no row's name and no part of one; the rows are: INT8, a scale per row, RTN-4 g64, " in r.stderr
    assert not (tmp_path / "out").exists()
