#!/usr/bin/env python3
"""Makes the two texts in the program: src/quant/texts/calibration.jsonl and evaluation.jsonl.

    tools/make_texts.py [--out DIR]

Sources, all of this project and under its licence: the documentation in English and Chinese, C and Python source, texts written for the purpose
(tools/texts/own.txt), and dialogues from the generator that the small models are trained with (tools/train_small). Nothing is downloaded.

A line is {"text": ...} or {"messages": [...], "tools"?: [...]}. The two sets share no block, no file of source and no line of COMMON characters
or more; the last is checked. The order is mixed by a fixed seed. The files are made once and kept: a number measured over them is comparable
only while they stay as they are, so do not make them anew because a page of the documentation has changed.
"""
import argparse
import json
import pathlib
import random
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools/train_small"))
import tasks  # noqa: E402

CHUNK = 2600     # bytes of a piece of documentation or source: about one window of 512 tokens
COMMON = 60      # characters of a line that both sets may not have
CALIBRATION, EVALUATION = 200_000, 60_000  # bytes of text, roughly

DOCS = ["README.md", "README.zh-CN.md", "docs/architecture.md", "docs/formats.md", "docs/numerics.md", "docs/operations.md", "docs/pull.md", "bench/kernels.md",
        "bench/load.md", "tests/golden/README.md", "tests/fuzz/README.md", "tools/train_small/README.md"]
SOURCE_CALIBRATION = ["src/base/json.c", "src/text/jinja_seq.c", "src/engine/sched.c", "src/backend/cpu/attention.c", "src/server/http.c",
                      "tools/train_small/model.py", "tools/train_small/evaluate.py"]
SOURCE_EVALUATION = ["src/text/detok.c", "src/engine/kv_pages.c", "src/base/pool.c", "tools/train_small/delta_rule.py"]


def chunks(text, size=CHUNK):
    """Cuts at blank lines (else at line ends) into pieces of about size bytes."""
    out, piece = [], ""
    for part in re.split(r"(?<=\n)\n(?=\S)", text):
        part = part.strip("\n") + "\n"
        if piece and len((piece + part).encode()) > size:
            out.append(piece)
            piece = ""
        piece += ("\n" if piece else "") + part
        while len(piece.encode()) > 2 * size:
            cut = piece.rfind("\n", 0, size) + 1 or size
            out.append(piece[:cut])
            piece = piece[cut:]
    return out + ([piece] if piece.strip() else [])


def own():
    """Blocks of tools/texts/own.txt as (kind, record), every fourth of a kind for evaluation."""
    counts = {}
    for block in re.split(r"^### ", (ROOT / "tools/texts/own.txt").read_text(), flags=re.M)[1:]:
        kind, body = block.split("\n", 1)
        counts[kind] = counts.get(kind, 0) + 1
        if kind == "chat":
            turns = re.split(r"^([SUA]): ", body.strip("\n"), flags=re.M)[1:]
            role = {"S": "system", "U": "user", "A": "assistant"}
            record = {"messages": [{"role": role[r], "content": c.strip("\n")} for r, c in zip(turns[::2], turns[1::2])]}
        else:
            record = {"text": body.strip("\n") + "\n"}
        yield counts[kind] % 4 == 0, record


def dialogue(rng, evaluation):
    sample = tasks.draw(rng, rng.choice([60, 120, 200]), evaluation, without=("sheng", "talk") if evaluation else ())
    answer = {"role": "assistant", "content": sample.content}
    if sample.think is not None:
        answer["reasoning_content"] = sample.think
    if sample.tool_calls:
        answer["tool_calls"] = [{"type": "function", "function": call} for call in sample.tool_calls]
    record = {"messages": sample.messages + [answer]}
    if sample.tools:
        record["tools"] = sample.tools
    return record


def size(record):
    return len(json.dumps(record, ensure_ascii=False).encode())


def lines_of(record):
    texts = [record["text"]] if "text" in record else [m["content"] for m in record["messages"]]
    return {line.strip() for text in texts for line in text.split("\n") if len(line.strip()) >= COMMON}


def make():
    rng = random.Random(20250101)
    sets = {False: [], True: []}
    for evaluation, record in own():
        sets[evaluation].append(record)
    for doc in DOCS:
        for i, piece in enumerate(chunks((ROOT / doc).read_text())):
            sets[i % 4 == 3].append({"text": piece})
    for evaluation, files in ((False, SOURCE_CALIBRATION), (True, SOURCE_EVALUATION)):
        pieces = [p for f in files for p in chunks((ROOT / f).read_text())]
        room = (CALIBRATION if not evaluation else EVALUATION) * 0.38
        rng.shuffle(pieces)
        for piece in pieces:
            if room > 0:
                sets[evaluation].append({"text": piece})
                room -= len(piece.encode())
    for evaluation, total in ((False, CALIBRATION), (True, EVALUATION)):
        while sum(map(size, sets[evaluation])) < total:
            sets[evaluation].append(dialogue(rng, evaluation))
    known = set().union(*map(lines_of, sets[False]))
    sets[True] = [r for r in sets[True] if not lines_of(r) & known]
    while sum(map(size, sets[True])) < EVALUATION:
        record = dialogue(rng, True)
        if not lines_of(record) & known:
            sets[True].append(record)
    for records in sets.values():
        rng.shuffle(records)
    assert not known & set().union(*map(lines_of, sets[True]))
    return sets


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "src/quant/texts")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    for evaluation, records in make().items():
        name = "evaluation.jsonl" if evaluation else "calibration.jsonl"
        text = "".join(json.dumps(r, ensure_ascii=False) + "\n" for r in records)
        (args.out / name).write_text(text)
        kinds = {}
        for r in records:
            kind = "chat" if "messages" in r else "zh" if len(re.findall(r"[\u4e00-\u9fff]", r["text"])) > 0.2 * len(r["text"]) else "text and code"
            kinds[kind] = kinds.get(kind, 0) + size(r)
        print(f"{name}: {len(records)} lines, {len(text.encode())} bytes; {kinds}")


if __name__ == "__main__":
    main()
