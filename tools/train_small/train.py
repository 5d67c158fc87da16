"""Trains a small model on generated text, on a CPU.

    train.py dense|moe OUT_DIR --tokenizer DIR [--tokens N] [--extra N] [--seed N] [--threads N]

OUT_DIR receives checkpoint.pt (written every minute under a temporary name; the same command goes on from it), log.csv (the loss curve) and samples.txt (what the model answers as it
learns). The same seed draws the same samples in the same order, whether or not the run was interrupted. The learning rate is constant and falls to zero over the last three fifths of
--tokens; the length of recall lists grows on the way. --extra tokens follow, at lower rates that fall again, with more copying and recall: what is learned last.

A sample's loss is that of its answer (thought, text or call, and the end marker). The MTP head is trained along, every other step, on the same answers.
"""
import argparse
import csv
import dataclasses
import os
import random
import time

import torch
from torch.nn import functional as F
from transformers import AutoTokenizer

import delta_rule
import model as shapes
import optim
import tasks

POOL = 256  # samples drawn together and sorted by length into batches
# Of the matrices (Muon): more than this and eight layers lose what they begin with. Steps of warmup.
LR, WARMUP = {"dense": 3e-3, "moe": 5e-3}, {"dense": 120, "moe": 60}
LR_REST = 2e-3  # of the rest (AdamW)
DECAY = 0.6     # share of the run over which the rates fall to zero
MTP_WEIGHT = 0.3


@dataclasses.dataclass
class Phase:
    until: float      # share of the run
    longest: int      # recall list, tokens
    batch: int        # padded tokens of a step
    without: tuple    # tasks left out
    mtp: bool
    drill: float = 0  # share of the samples that are drills
    more: tuple = ()  # (task, share) pairs: samples that are of a task whatever the tasks' weights


# Small batches, many steps, lists that grow; the MTP head joins when there is something to draft.
PHASES = [Phase(0.05, 60, 2048, ("tools",), False, 0.3), Phase(0.40, 100, 2048, (), True), Phase(0.80, 300, 2048, (), True), Phase(1.01, 2100, 4096, (), True)]
EXTRA, EXTRA_RATE = Phase(1, 1000, 2048, (), True, more=(("copy", 0.4), ("recall", 0.2))), 0.4


def drill(rng, ordinary, end):
    """(ids, which of them are learned) of a line of random tokens that comes again, or of random pairs whose second halves are asked for in another order.

    Half of the tokens teach copying and recall, of samples it is a tenth: with drills first, attention finds the earlier place within a few hundred steps.
    """
    def some(n):
        return [rng.randrange(ordinary) for _ in range(n)]
    if rng.random() < 0.5:
        line = some(rng.randint(3, 30)) + [end]
        times = max(2, 64 // len(line))
        return line * times, [False] * len(line) + [True] * (len(line) * (times - 1))
    key, value = rng.randint(1, 3), rng.randint(1, 3)
    pairs = [(some(key), some(value)) for _ in range(rng.randint(2, 12))]
    ids = [t for k, v in pairs for t in (*k, *v, end)]
    learned = [False] * len(ids)
    for k, v in rng.sample(pairs, len(pairs)):
        ids += [*k, *v, end]
        learned += [False] * key + [True] * (value + 1)
    return ids, learned


def twins(tokenizer):
    """Pairs of ids: a word with a space before it, and the same word without."""
    vocab = tokenizer.get_vocab()
    return sorted((i, vocab[piece[1:]]) for piece, i in vocab.items() if piece[0] == "Ġ" and piece[1:] in vocab)


def encode(tokenizer, sample):
    """(ids, start of the answer) of a sample, in the chat template's form."""
    ids = tokenizer(tasks.prompt_of(tokenizer, sample), add_special_tokens=False).input_ids
    answer = tokenizer(tasks.completion(sample) + "<|im_end|>", add_special_tokens=False).input_ids
    return ids + answer, len(ids)


def draw_pool(tokenizer, config, seed, number, phase):
    """Batches of one pool, in random order; each a list of (ids, which are learned). The pool's number and the seed fix all of it."""
    rng = random.Random(f"{seed}/{number}")
    encoded = []
    for _ in range(POOL):
        if rng.random() < phase.drill:
            encoded.append(drill(rng, config.pad_token_id, config.eos_token_id))
            continue
        size = int(30 * (phase.longest / 30) ** rng.random())
        task = rng.choices([*(t for t, _ in phase.more), None], [*(w for _, w in phase.more), 1 - sum(w for _, w in phase.more)])[0] if phase.more else None
        ids, start = encode(tokenizer, tasks.draw(rng, size, task=task, without=phase.without))
        encoded.append((ids, [False] * start + [True] * (len(ids) - start)))
    encoded.sort(key=lambda e: len(e[0]))
    batches, batch = [], []
    for e in encoded:
        if batch and (len(batch) + 1) * len(e[0]) > phase.batch:
            batches.append(batch)
            batch = []
        batch.append(e)
    batches.append(batch)
    rng.shuffle(batches)
    return batches


def tensors(batch, pad):
    """(ids [B, T], targets [B, T] with -100 where there is no loss) of a batch; T is a multiple of 32."""
    width = -(-max(len(ids) for ids, _ in batch) // 32) * 32
    ids = torch.full((len(batch), width), pad)
    targets = torch.full((len(batch), width), -100)
    for row, (seq, learned) in enumerate(batch):
        seq = torch.tensor(seq)
        ids[row, :len(seq)] = seq
        targets[row, :len(seq) - 1] = torch.where(torch.tensor(learned[1:]), seq[1:], -100)
    return ids, targets


def losses(model, head, ids, targets, with_mtp):
    """(loss of the next token, loss of the MTP head or None), means over the answers."""
    with torch.autocast("cpu", dtype=torch.bfloat16):  # products only; norms, states, softmax and the weights themselves stay in float32
        hidden = model.model(input_ids=ids, use_cache=False).last_hidden_state
        wanted = targets >= 0
        main = F.cross_entropy(model.lm_head(hidden[wanted]).float(), targets[wanted])
        if not with_mtp:
            return main, None
        # Position i sees the hidden state of token i and the embedding of token i + 1, and drafts token i + 2.
        after = targets[:, 1:]
        wanted = (after >= 0) & (targets[:, :-1] >= 0)
        drafted = head(model.model, hidden[:, :-1], model.model.embed_tokens(ids[:, 1:]))
        return main, F.cross_entropy(model.lm_head(drafted[wanted]).float(), after[wanted])


def rate(done, total, extra, step, warmup):
    """The learning rates' factor at a point of the run."""
    if done >= total:
        return EXTRA_RATE * max(total + extra - done, 0) / extra
    left = (total - done) / (DECAY * total)
    return min(1.0, (step + 1) / warmup, max(left, 0.0))


@torch.no_grad()
def show(model, tokenizer, out, number, longest, count=5):
    """Appends a few greedy answers to evaluation questions to samples.txt."""
    rng = random.Random(number)
    with open(f"{out}/samples.txt", "a") as f:
        f.write(f"\n== pool {number}, lists up to {longest}\n")
        for task in rng.sample(list(tasks.TASKS), count):
            s = tasks.draw(rng, min(longest, 200), evaluation=True, task=task)
            ids, start = encode(tokenizer, s)
            seq = ids[:start]
            for _ in range(40):
                token = int(model(input_ids=torch.tensor([seq]), use_cache=False, logits_to_keep=1).logits[0, -1].argmax())
                if token == model.config.eos_token_id:
                    break
                seq.append(token)
            f.write(f"[{s.task}] {s.messages[-1]['content'][-90:]!r} -> {tokenizer.decode(seq[start:])!r}\n")
            f.write(f"       wanted {tasks.completion(s)!r}\n")


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("kind", choices=["dense", "moe"])
    p.add_argument("out")
    p.add_argument("--tokenizer", required=True)
    p.add_argument("--tokens", type=float, default=8e6, help="padded tokens to train on")
    p.add_argument("--extra", type=float, default=0, help="padded tokens after them")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--threads", type=int, default=os.cpu_count())
    a = p.parse_args()
    torch.set_num_threads(a.threads)
    torch.manual_seed(a.seed)
    delta_rule.install()
    os.makedirs(a.out, exist_ok=True)
    tokenizer = AutoTokenizer.from_pretrained(a.tokenizer)
    model, head = shapes.build(a.kind, twins(tokenizer))
    pad = model.config.pad_token_id
    assert tokenizer.convert_tokens_to_ids("<|im_end|>") == model.config.eos_token_id
    matrices, rest = optim.split(model, head)
    muon = optim.Muon(matrices, LR[a.kind], weight_decay=0.02)
    adam = torch.optim.AdamW(rest, LR_REST, betas=(0.9, 0.98), weight_decay=0.0, fused=True)
    at = dict(pool=0, step=0, done=0, seconds=0.0)
    file = f"{a.out}/checkpoint.pt"
    if os.path.exists(file):
        saved = torch.load(file, weights_only=True)
        model.load_state_dict(saved["model"])
        head.load_state_dict(saved["head"])
        muon.load_state_dict(saved["muon"])
        adam.load_state_dict(saved["adam"])
        at = saved["at"]
        print(f"going on at step {at['step']}, {at['done'] / 1e6:.2f} M tokens", flush=True)
    log = open(f"{a.out}/log.csv", "a", newline="")
    rows = csv.writer(log)
    if at["step"] == 0:
        rows.writerow(["step", "tokens", "seconds", "lr", "longest_list", "loss", "mtp_loss"])
    began, since, recent, recent_mtp = time.monotonic() - at["seconds"], time.monotonic(), [], []

    while at["done"] < a.tokens + a.extra:
        phase = next((p for p in PHASES if at["done"] < a.tokens and at["done"] / a.tokens < p.until), EXTRA)
        for batch in draw_pool(tokenizer, model.config, a.seed, at["pool"], phase):
            ids, targets = tensors(batch, pad)
            main_loss, mtp_loss = losses(model, head, ids, targets, with_mtp=phase.mtp and at["step"] % 2 == 0)
            (main_loss if mtp_loss is None else main_loss + 2 * MTP_WEIGHT * mtp_loss).backward()
            torch.nn.utils.clip_grad_norm_(rest, 1.0)
            factor = rate(at["done"], a.tokens, a.extra, at["step"], WARMUP[a.kind])
            muon.param_groups[0]["lr"], adam.param_groups[0]["lr"] = LR[a.kind] * factor, LR_REST * factor
            muon.step()
            adam.step()
            muon.zero_grad()
            adam.zero_grad()
            at["step"] += 1
            at["done"] += ids.numel()
            recent.append(main_loss.item())
            if mtp_loss is not None:
                recent_mtp.append(mtp_loss.item())
            if at["step"] % 20 == 0:
                at["seconds"] = time.monotonic() - began
                mean, mtp = sum(recent) / len(recent), sum(recent_mtp) / max(len(recent_mtp), 1)
                rows.writerow([at["step"], at["done"], round(at["seconds"]), round(muon.param_groups[0]["lr"], 6), phase.longest, round(mean, 4), round(mtp, 4)])
                log.flush()
                print(f"step {at['step']}  {at['done'] / 1e6:.2f} M tokens  {at['seconds'] / 60:.1f} min  {at['done'] / at['seconds']:.0f} tok/s  loss {mean:.4f}  mtp {mtp:.4f}", flush=True)
                recent, recent_mtp = [], []
        at["pool"] += 1
        if time.monotonic() - since > 60 or at["done"] >= a.tokens + a.extra:
            at["seconds"] = time.monotonic() - began
            torch.save(dict(model=model.state_dict(), head=head.state_dict(), muon=muon.state_dict(), adam=adam.state_dict(), at=at), file + ".tmp")
            os.replace(file + ".tmp", file)
            since = time.monotonic()
        if at["pool"] % 40 == 0:
            show(model, tokenizer, a.out, at["pool"], phase.longest)


main()
