"""Writes a trained model as an ordinary Hugging Face folder, the way the released checkpoints are.

    export.py dense|moe CHECKPOINT.pt TOKENIZER_DIR OUT_DIR

bf16 safetensors under the released names (model.language_model.*, experts fused to [E, 2I, H] and [E, H, I], mtp.*), config.json with the text model inside, the tokenizer's files, the
Qwen3.5 chat template and a model card. transformers reads the folder back with AutoModelForCausalLM (and leaves mtp.* out, as it does with the released ones).
"""
import json
import os
import shutil
import sys

import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM

import model as shapes

CARD = """---
license: apache-2.0
language: [en, zh]
---
# {name}

A test model of {count:.2f} million parameters with the architecture of Qwen3.5 ({what}) and its MTP head, trained on a CPU by tools/train_small of sheng, on text that a program
generated. It copies, recalls, counts, sorts, adds, writes JSON, calls tools and answers questions about sheng; docs/small-models.md says how well. It knows nothing else.
"""


def tensors(model, head):
    """Released name -> bf16 tensor. model: the trained one; head: its MTP head."""
    out = {}
    for name, t in model.state_dict().items():
        if name == "lm_head.weight":
            if not model.config.tie_word_embeddings:
                out[name] = t
        else:
            out[name.replace("model.", "model.language_model.", 1)] = t
    for name, t in head.state_dict().items():
        out["mtp." + name] = t
    return {name: t.to(torch.bfloat16).contiguous() for name, t in out.items()}


def config(model, kind):
    """config.json of the released form: the text model's keys under text_config."""
    text = model.config.to_dict()
    for key in ("architectures", "transformers_version", "_name_or_path", "torch_dtype"):
        text.pop(key, None)
    text.update(dtype="bfloat16", mtp_num_hidden_layers=1, mtp_use_dedicated_embeddings=False, attn_output_gate=True, full_attention_interval=4, mamba_ssm_dtype="float32")
    family = "qwen3_5_moe" if kind == "moe" else "qwen3_5"
    return dict(architectures=["Qwen3_5MoeForConditionalGeneration" if kind == "moe" else "Qwen3_5ForConditionalGeneration"], model_type=family, text_config=text,
                language_model_only=True, tie_word_embeddings=model.config.tie_word_embeddings, image_token_id=2011, video_token_id=2012, vision_start_token_id=2009,
                vision_end_token_id=2010)


def main():
    kind, checkpoint, tokenizer, out = sys.argv[1:5]
    model, head = shapes.build(kind)
    saved = torch.load(checkpoint, weights_only=True)
    model.load_state_dict(saved["model"])
    head.load_state_dict(saved["head"])
    os.makedirs(out, exist_ok=True)
    stored = tensors(model, head)
    save_file(stored, f"{out}/model.safetensors", metadata={"format": "pt"})
    os.chmod(f"{out}/model.safetensors", 0o644)
    with open(f"{out}/config.json", "w") as f:
        json.dump(config(model, kind), f, indent=1)
    for file in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json"):
        shutil.copyfile(f"{tokenizer}/{file}", f"{out}/{file}")
    with open(f"{out}/README.md", "w") as f:
        f.write(CARD.format(name=os.path.basename(out.rstrip("/")), count=sum(t.numel() for t in stored.values()) / 1e6, what="8 experts, 2 of them a token" if kind == "moe" else "dense"))
    back, info = AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32, output_loading_info=True)
    lost = {k: v for k, v in info.items() if v and not (k == "unexpected_keys" and all(n.startswith("mtp.") for n in v))}
    if lost:
        sys.exit(f"transformers does not read the folder back: {lost}")
    ids = torch.arange(50, 90)[None]
    with torch.no_grad():
        model.load_state_dict({k: v.to(torch.bfloat16).float() for k, v in model.state_dict().items()})
        gap = (back(input_ids=ids).logits - model(input_ids=ids).logits).abs().max().item()
    print(f"{out}: {os.path.getsize(out + '/model.safetensors') / 1e6:.2f} MB, step {saved['at']['step']}, {saved['at']['done'] / 1e6:.2f} M tokens, logits read back within {gap:.1e}")


main()
