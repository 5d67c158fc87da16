#!/usr/bin/env python3
"""Style checks that a compiler does not make. Prints file:line: message for each finding and exits 1 if there is any.

    tools/style.py [--objects DIR]      run from anywhere; DIR defaults to build/release/src, and is skipped when it was not built

Checks, over src/, include/ and tests/:
  banned      functions that cannot be used safely, the malloc family outside base/mem.c, exit and abort outside main and cli, getenv outside base/opt.c
  length      lines of at most 140 characters, functions of at most 150 lines, files of at most 1500 lines
  guard       a header's guard is SH_<PATH>_H (in tests: begins with SH_), and no #pragma once
  layers      an #include points downwards (LAYERS below)
  opening     a .c in src/ opens with a comment that says what it owns
  leftovers   TODO, FIXME, XXX
  symbols     what an object file exports is sh_... or main (nm)

A line with `style: allow <reason>` in a comment is excused; a finding on a whole file is excused by line 1. A reason is demanded.
"""
import argparse
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent

MAX_LINE, MAX_FUNCTION, MAX_FILE = 140, 150, 1500

UNSAFE = "strcpy strcat strncat sprintf vsprintf gets strtok strtok_r atoi atol atoll atof alloca scanf tmpnam mktemp".split()
HEAP = "malloc calloc realloc reallocarray free strdup strndup asprintf vasprintf aligned_alloc posix_memalign memalign getline".split()
ENDS = "exit abort _exit quick_exit _Exit".split()

# Who may use the functions of a group, by path from the root; all else in src/ may not. Tests may use HEAP and ENDS.
MAY_HEAP = ("src/base/mem.c",)
MAY_END = ("src/main.c", "src/cli/", "src/base/file.c")
MAY_GETENV = ("src/base/opt.c",)

# A folder may include itself and what stands to its right.
LAYERS = ["main", "cli", "bench", "server", "ops", "synth", "quant", "sheng.h", "engine", "model", "backend", "kernels", "text", "formats", "base"]
# sheng.h stands between the server and the engine, so these must not be reached past it.
BEHIND_SHENG_H = {"engine", "model", "backend", "kernels"}

ALLOW = re.compile(r"style: allow(\s+\w+)?")
CALL = re.compile(r"(?<![\w.>])(%s)\s*\(" % "|".join(sorted(set(UNSAFE + HEAP + ENDS + ["getenv", "secure_getenv"]), key=len, reverse=True)))
INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"')
LEFTOVER = re.compile(r"\b(TODO|FIXME|XXX)\b")


def blank_out(text):
    """The text with comments, strings and character constants replaced by blanks; line breaks stay."""
    pattern = re.compile(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.S)
    return pattern.sub(lambda m: re.sub(r"[^\n]", " ", m.group()), text)


class Report:
    def __init__(self):
        self.found = []

    def add(self, path, line, message, lines):
        """Records a finding unless the line is excused."""
        text = lines[line - 1] if 0 < line <= len(lines) else ""
        excuse = ALLOW.search(text)
        if excuse and excuse.group(1):
            return
        if excuse:
            message += " (and `style: allow` gives no reason)"
        self.found.append((path, line, message))


def check_calls(path, lines, code, report):
    in_src = path.startswith(("src/", "include/"))
    for number, line in enumerate(code, 1):
        if re.match(r"\s*#\s*include", line):
            continue
        for match in CALL.finditer(line):
            name = match.group(1)
            if name in UNSAFE:
                report.add(path, number, f"{name}() is banned", lines)
            elif not in_src:
                continue
            elif name in HEAP and not path.startswith(MAY_HEAP):
                report.add(path, number, f"{name}() outside base/mem.c; use sh_malloc and its like", lines)
            elif name in ENDS and not path.startswith(MAY_END):
                report.add(path, number, f"{name}() outside main and cli; return an sh_err", lines)
            elif name in ("getenv", "secure_getenv") and path not in MAY_GETENV:
                report.add(path, number, f"{name}() outside base/opt.c; make it an option with an environment name", lines)


def check_lengths(path, lines, code, report):
    for number, line in enumerate(lines, 1):
        if len(line) > MAX_LINE:
            report.add(path, number, f"line of {len(line)} characters, at most {MAX_LINE}", lines)
    if len(lines) > MAX_FILE:
        report.add(path, 1, f"file of {len(lines)} lines, at most {MAX_FILE}", lines)
    start = None  # of a function: its opening line ends in ") {" at column 0 of nothing else, its last line is "}"
    for number, line in enumerate(code, 1):
        line = line.rstrip()
        if start is None and line[:1] not in (" ", "\t", "#", "}") and line.endswith("{") and ")" in line and "=" not in line.split("(")[0]:
            start = number
        elif start is None and number > 1 and re.match(r"^\s+.*\)\s*\{$", line) and re.match(r"^[A-Za-z_].*[,(]$", code[number - 2].rstrip()):
            start = number - 1  # a parameter list over two lines
        elif start is not None and line == "}":
            if number - start + 1 > MAX_FUNCTION:
                report.add(path, start, f"function of {number - start + 1} lines, at most {MAX_FUNCTION}", lines)
            start = None


def check_guard(path, lines, report):
    inner = re.sub(r"^(src|include)/", "", path)
    want = "SH_" + re.sub(r"[^A-Z0-9]", "_", inner.upper())
    if path == "include/sheng.h":
        want = "SHENG_H"
    guard = None
    for number, line in enumerate(lines, 1):
        if line.startswith("#pragma once"):
            report.add(path, number, "#pragma once; use a guard", lines)
        match = re.match(r"#ifndef (\w+)", line)
        if match:
            guard = match.group(1)
            nxt = lines[number].strip() if number < len(lines) else ""
            strict = path.startswith(("src/", "include/"))
            if strict and guard != want and not (path == "include/sheng.h" and guard == "SH_SHENG_H"):
                report.add(path, number, f"guard {guard}, wanted {want}", lines)
            elif not strict and not guard.startswith("SH_"):
                report.add(path, number, f"guard {guard}, wanted one that begins with SH_", lines)
            if nxt != f"#define {guard}":
                report.add(path, number + 1, f"#ifndef {guard} is not followed by its #define", lines)
            break
    if guard is None:
        report.add(path, 1, f"header without a guard, wanted {want}", lines)


def layer_of(name):
    """The layer of a path from src/ or include/: its first folder, "main" for main.c, "sheng.h" for itself."""
    if name in ("sheng.h", "main.c"):
        return name.removesuffix(".c")
    return name.split("/")[0]


def check_includes(path, lines, report):
    if not path.startswith(("src/", "include/")):
        return
    name = re.sub(r"^(src|include)/", "", path)
    mine = layer_of(name)
    if mine not in LAYERS:
        report.add(path, 1, f"folder {mine} has no place among the layers in tools/style.py", lines)
        return
    for number, line in enumerate(lines, 1):
        match = INCLUDE.match(line)
        if not match:
            continue
        target = match.group(1)
        theirs = layer_of(target)
        if theirs not in LAYERS:
            if not (ROOT / "build").exists() or "/" in target:
                report.add(path, number, f'"{target}" is not named from src/ or include/', lines)
            continue
        if mine == "engine" and theirs == "sheng.h":
            continue  # the engine implements it
        if LAYERS.index(theirs) < LAYERS.index(mine):
            report.add(path, number, f"{mine} includes {theirs}, which is a layer above it", lines)
        elif mine == "server" and theirs in BEHIND_SHENG_H:
            report.add(path, number, f"server includes {theirs} past sheng.h", lines)


def check_text(path, lines, report):
    for number, line in enumerate(lines, 1):
        match = LEFTOVER.search(line)
        if match:
            report.add(path, number, f"{match.group(1)} left in the text", lines)
        if line != line.rstrip():
            report.add(path, number, "blanks at the end of the line", lines)
        if "\t" in line:
            report.add(path, number, "a tab", lines)
    if path.startswith("src/") and path.endswith(".c") and not (lines and lines[0].startswith("/*")):
        report.add(path, 1, "does not open with a comment that says what the file owns", lines)


def check_symbols(objects, report):
    for obj in sorted(objects.rglob("*.o")):
        source = ROOT / "src" / obj.relative_to(objects).with_suffix(".c")
        if not source.exists():
            continue  # an object of a file that is gone
        out = subprocess.run(["nm", "--defined-only", "--extern-only", str(obj)], capture_output=True, text=True, check=False).stdout
        for line in out.splitlines():
            parts = line.split()
            if len(parts) < 3 or parts[2].startswith("sh_") or parts[2] == "main":
                continue
            path = str(source.relative_to(ROOT))
            lines = source.read_text().splitlines()
            number = next((n for n, text in enumerate(lines, 1) if re.search(r"\b%s\b" % re.escape(parts[2]), text)), 1)
            report.add(path, number, f"global symbol {parts[2]} does not begin with sh_ (static?)", lines)


def check_file(file, report):
    path = str(file.relative_to(ROOT))
    try:
        text = file.read_text()
    except UnicodeDecodeError:
        report.add(path, 1, "not UTF-8", [])
        return
    lines = text.split("\n")
    if lines and lines[-1] == "":
        lines.pop()
    else:
        report.add(path, len(lines), "no newline at the end of the file", lines)
    code = blank_out(text).split("\n")[: len(lines)]
    check_calls(path, lines, code, report)
    check_lengths(path, lines, code, report)
    check_includes(path, lines, report)
    check_text(path, lines, report)
    if path.endswith(".h"):
        check_guard(path, lines, report)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--objects", type=pathlib.Path, default=ROOT / "build/release/src")
    parser.add_argument("files", nargs="*", type=pathlib.Path, help="only these files")
    args = parser.parse_args()
    report = Report()
    files = [f.resolve() for f in args.files] or sorted(f for d in ("src", "include", "tests") for e in ("*.c", "*.h") for f in (ROOT / d).rglob(e))
    for file in files:
        check_file(file, report)
    if not args.files and args.objects.exists():
        check_symbols(args.objects, report)
    for path, line, message in sorted(report.found):
        print(f"{path}:{line}: {message}")
    bad = len({path for path, _, _ in report.found})
    print(f"{len(files) - bad} passed, {bad} failed")  # files; tools/run_checks.py reads it
    return 1 if report.found else 0


if __name__ == "__main__":
    sys.exit(main())
