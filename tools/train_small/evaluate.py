"""Exact match on held-out instances, by sheng's greedy decoding, checked against transformers on the same prompts; and how often the MTP head's first draft is right.

    evaluate.py MODEL_DIR --sheng PROGRAM [--count N] [--json FILE] [--only TASK]

Prints a table in markdown. `equal` counts answers that transformers' greedy decoding gives too: one forward pass over prompt and answer must have every token of the answer as its
first choice (then greedy decoding, token by token, gives the same answer by induction); a difference where the two best logits are less than 1e-3 apart is a tie.
"""
import argparse
import json
import random
import re
import subprocess
import sys

import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

import model as shapes
import tasks

TIE = 1e-3
LONGEST_ANSWER = 200
# row of the table: (task of tasks.py, prompt length in tokens or None, wanted share or None)
ROWS = {"copy": ("copy", None, 0.98), "recall, 500 tokens": ("recall", 500, 0.95), "recall, 2,000 tokens": ("recall", 2000, 0.60), "count": ("count", None, None), "sort": ("sort", None, None),
        "add": ("add", None, None), "JSON": ("json", None, 0.95), "tool call": ("tools", None, 0.90), "tool reply": ("tool reply", None, None), "about sheng": ("sheng", None, None), "talk": ("talk", None, None)}


def instances(tokenizer, task, length, count, seed):
    """Distinct held-out samples of a row; recall lists are brought within a tenth of length tokens."""
    rng, seen, out, size = random.Random(f"{seed}/{task}/{length}"), set(), [], length or 120
    while len(out) < count:
        if task == "recall":
            s = tasks.draw(rng, size, evaluation=True, task="recall", question=1)
            got = len(tokenizer(tasks.prompt_of(tokenizer, s)).input_ids)
            if abs(got - length) > length // 10:
                size = max(20, int(size * length / got))
                continue
        else:
            s = tasks.draw(rng, size, evaluation=True, task="tools" if task == "tool reply" else task)
            if s.task != task:
                continue
        key = s.key + tasks.prompt_of(tokenizer, s)
        if key not in seen or task in ("sheng", "talk"):  # those have few forms: the earlier turns differ
            seen.add(key)
            out.append(s)
    return out


def parse_call(text):
    """[{"name", "arguments": {name: text}}] of an answer in the template's XML, or None when it does not parse."""
    calls, rest = [], text.strip()
    while rest:
        m = re.match(r"<tool_call>\n<function=([^>\n]+)>\n((?:<parameter=[^>\n]+>\n.*?\n</parameter>\n)*)</function>\n</tool_call>\s*", rest, re.S)
        if not m:
            return None
        calls.append({"name": m[1], "arguments": dict(re.findall(r"<parameter=([^>\n]+)>\n(.*?)\n</parameter>\n", m[2], re.S))})
        rest = rest[m.end():]
    return calls


def right(sample, text):
    """Whether the answer is the wanted one; calls and JSON are compared as values, all else as text."""
    answer = tasks.answer_of(text)
    if sample.tool_calls:
        return parse_call(answer) == parse_call(tasks.answer_of(tasks.completion(sample)))
    if sample.task == "json":
        try:
            return json.loads(answer) == json.loads(sample.content)
        except ValueError:
            return False
    return answer == sample.content


def valid(sample, text):
    """Whether the answer parses: JSON and calls only."""
    answer = tasks.answer_of(text)
    if sample.tool_calls:
        return bool(parse_call(answer))
    try:
        return isinstance(json.loads(answer), dict)
    except ValueError:
        return False


def generate(sheng, folder, prompts):
    """sheng's greedy answers: [{"ids", "text", "finish_reason"}]."""
    lines = "".join(json.dumps({"prompt": p, "temperature": 0, "max_tokens": LONGEST_ANSWER, "skip_special_tokens": True}) + "\n" for p in prompts)
    run = subprocess.run([sheng, "generate", folder, "--exact"], input=lines, capture_output=True, text=True)
    if run.returncode:
        sys.exit(run.stderr)
    return [json.loads(line) for line in run.stdout.splitlines()]


class Reference:
    """transformers' forward pass, and the MTP head on its hidden states."""

    def __init__(self, folder):
        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        self.head = shapes.Mtp(self.model.model).eval()
        stored = load_file(f"{folder}/model.safetensors")
        self.head.load_state_dict({n.removeprefix("mtp."): t.float() for n, t in stored.items() if n.startswith("mtp.")})

    @torch.no_grad()
    def check(self, prompt, answer):
        """(whether every token of answer is the first choice, drafts, right drafts)."""
        ids = torch.tensor([prompt + answer])
        trunk = self.model.model
        hidden = trunk(input_ids=ids, use_cache=False).last_hidden_state
        at = len(prompt) - 1
        logits = self.model.lm_head(hidden[0, at:-1])
        told = ids[0, at + 1:]
        equal = bool(((logits.argmax(-1) == told) | (logits.max(-1).values - logits.gather(1, told[:, None])[:, 0] < TIE)).all())
        drafted = self.model.lm_head(self.head(trunk, hidden[:, :-1], trunk.embed_tokens(ids[:, 1:])))[0].argmax(-1)
        wanted = ids[0, at + 2:]
        return equal, wanted.numel(), int((drafted[at:at + wanted.numel()] == wanted).sum())


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("folder")
    p.add_argument("--sheng", required=True)
    p.add_argument("--count", type=int, default=200, help="instances of each row")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--json", help="write the rows here too")
    p.add_argument("--only", help="one row")
    p.add_argument("--show", action="store_true", help="print wrong answers")
    a = p.parse_args()
    torch.set_num_threads(1)
    tokenizer = AutoTokenizer.from_pretrained(a.folder)
    reference = Reference(a.folder)
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    rows, drafts, hits = {}, 0, 0
    print("| task | instances | right | wanted | parses | equal to transformers | MTP first draft |\n|---|---|---|---|---|---|---|")
    for name, (task, length, wanted) in ROWS.items():
        if a.only and a.only != name:
            continue
        samples = instances(tokenizer, task, length, a.count, a.seed)
        prompts = [tasks.prompt_of(tokenizer, s) for s in samples]
        answers = generate(a.sheng, a.folder, prompts)
        good = equal = parses = n = k = 0
        for s, prompt, g in zip(samples, prompts, answers):
            ids = list(g["ids"])
            if g["finish_reason"] == "stop" and (not ids or ids[-1] != end):
                ids.append(end)
            e, d, h = reference.check(tokenizer(prompt).input_ids, ids)
            ok = right(s, g["text"])
            good, equal, parses, n, k = good + ok, equal + e, parses + (task in ("json", "tools") and valid(s, g["text"])), n + d, k + h
            if a.show and not ok:
                print(f"   {s.messages[-1]['content'][-120:]!r}\n      wanted {s.content or s.tool_calls!r}\n      got    {g['text']!r}")
        drafts, hits = drafts + n, hits + k
        rows[name] = dict(instances=len(samples), right=good, wanted=wanted, parses=parses if task in ("json", "tools") else None, equal=equal, drafts=n, drafts_right=k)
        share = f"{parses / len(samples):.1%}" if task in ("json", "tools") else ""
        print(f"| {name} | {len(samples)} | {good / len(samples):.1%} | {'' if wanted is None else f'{wanted:.0%}'} | {share} | {equal}/{len(samples)} | {k / max(n, 1):.1%} |", flush=True)
    print(f"| all | {sum(r['instances'] for r in rows.values())} | | 60% (MTP) | | {sum(r['equal'] for r in rows.values())} | {hits / max(drafts, 1):.1%} |")
    if a.json:
        with open(a.json, "w") as f:
            json.dump(rows, f, indent=1)


if __name__ == "__main__":
    main()
