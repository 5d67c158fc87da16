"""Writes texts of the small models' own kind: to calibrate a quantization, to measure one, and questions.

    write_texts.py TOKENIZER_DIR OUT_DIR [--seed N]

calibration.jsonl and evaluation.jsonl: {"text"} lines of whole samples (prompt, answer, end marker), from training and from held-out instances. tasks.jsonl: {"prompt", "answer", "task"}
lines of held-out instances for `sheng eval --tasks`, the answer as the model should write it.
"""
import argparse
import json
import os
import random

from transformers import AutoTokenizer

import tasks

CALIBRATION, EVALUATION, QUESTIONS = 300, 120, 20  # lines; questions of each task


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("tokenizer")
    p.add_argument("out")
    p.add_argument("--seed", type=int, default=1)
    a = p.parse_args()
    tokenizer = AutoTokenizer.from_pretrained(a.tokenizer)
    os.makedirs(a.out, exist_ok=True)
    for name, count, evaluation in (("calibration", CALIBRATION, False), ("evaluation", EVALUATION, True)):
        rng = random.Random(f"{a.seed}/{name}")
        with open(f"{a.out}/{name}.jsonl", "w") as f:
            for _ in range(count):
                s = tasks.draw(rng, int(30 * 10 ** rng.random()), evaluation=evaluation)
                f.write(json.dumps({"text": tasks.prompt_of(tokenizer, s) + tasks.completion(s) + "<|im_end|>\n"}, ensure_ascii=False) + "\n")
    rng = random.Random(f"{a.seed}/questions")
    with open(f"{a.out}/tasks.jsonl", "w") as f:
        for task in tasks.TASKS:
            for _ in range(QUESTIONS):
                s = tasks.draw(rng, 120, evaluation=True, task=task)
                f.write(json.dumps({"task": s.task, "prompt": tasks.prompt_of(tokenizer, s), "answer": tasks.completion(s)}, ensure_ascii=False) + "\n")


main()
