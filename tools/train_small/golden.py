"""Reference data of a trained model: logits, residual stream, greedy continuations and MTP logits, by transformers and the training's own head.

    golden.py MODEL_DIR OUT.safetensors

The tensors are those of tests/golden/README.md: prompt.N [T], logits.N f32 [T, V], hidden.2.L f32 [T, H] after layer L, greedy.N 48 tokens (end tokens ignored) with margin.N, and
mtp_logits.N f32 [T, V] (row i drafts token i+2; the last row uses greedy token 0).
"""
import os
import sys

import torch
from safetensors.torch import save_file
from transformers import AutoTokenizer

import evaluate

PROMPTS = [
    ([{"role": "user", "content": "Hello!"}], False),
    ([{"role": "user", "content": "red apple: 48\nblue lamp: 97\n\nWhat is the value of blue lamp?"}], True),
    ([{"role": "user", "content": "请从3数到9。"}], False),
    ([{"role": "user", "content": "How do I quantize a model?"}], True),
    ([{"role": "user", "content": "Repeat: silver lotus bridge"}], False),
    ([{"role": "user", "content": "12+34="}], True),
    ([{"role": "user", "content": "你好"}], False),
]
GREEDY = 48


@torch.no_grad()
def main():
    folder, out = sys.argv[1:3]
    torch.set_num_threads(1)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    ref = evaluate.Reference(folder)
    model, gold = ref.model, {}
    for i, (messages, thinking) in enumerate(PROMPTS):
        ids = tokenizer(tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True, enable_thinking=thinking), return_tensors="pt").input_ids
        trunk = model.model(input_ids=ids, use_cache=False, output_hidden_states=i == 2)
        gold[f"prompt.{i}"] = ids[0].to(torch.int32)
        gold[f"logits.{i}"] = model.lm_head(trunk.last_hidden_state)[0].contiguous()
        if i == 2:
            for layer, x in enumerate(trunk.hidden_states):
                gold[f"hidden.{i}.{layer}"] = x[0].contiguous()
        seq, tokens, margins = ids, [], []
        for _ in range(GREEDY):
            best = model(input_ids=seq, use_cache=False, logits_to_keep=1).logits[0, -1].topk(2)
            tokens.append(int(best.indices[0]))
            margins.append(float(best.values[0] - best.values[1]))
            seq = torch.cat([seq, best.indices[:1][None]], 1)
        gold[f"greedy.{i}"], gold[f"margin.{i}"] = torch.tensor(tokens, dtype=torch.int32), torch.tensor(margins)
        drafted = ref.head(model.model, trunk.last_hidden_state, model.model.embed_tokens(seq[:, 1:ids.shape[1] + 1]))
        gold[f"mtp_logits.{i}"] = model.lm_head(drafted)[0].contiguous()
        print(i, ids.shape[1], repr(tokenizer.decode(tokens)[:120]), f"smallest margin {min(margins):.4f}")
    os.makedirs(os.path.dirname(out) or ".", exist_ok=True)
    save_file(gold, out)
    os.chmod(out, 0o644)


main()
