"""Trains the small models' tokenizer: byte-level BPE with the Qwen3.5 pre-tokenizer and marker tokens, on generated text.

    make_tokenizer.py TEMPLATE OUT_DIR      writes tokenizer.json, tokenizer_config.json, chat_template.jinja, generation_config.json
"""
import json
import os
import random
import shutil
import sys

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

import facts
import tasks

VOCAB = 2048          # with the markers and unused ids behind them
MARKERS = 48
PRE = r"""(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"""
NAMES = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>",
         "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"]
VISIBLE = ("think", "tool")  # markers that are ordinary text to a decoder that skips special tokens


def corpus(samples=12000):
    """Text of the same kind as the training's; the template's fixed words and the known answers are weighted up so that they become whole tokens."""
    rng = random.Random(1)
    for _ in range(samples):
        s = tasks.draw(rng, rng.choice([60, 120, 240]))
        for m in s.messages:
            yield m["content"]
        yield tasks.completion(s).replace("</think>", "")
        if s.tools:
            for t in s.tools:
                yield json.dumps(t)
    for word in tasks.WORDS + tasks.COLOURS + tasks.NAMES + tasks.CITIES:
        for form in (word, " " + word):  # both whole, so that copying a word to the beginning of an answer is one token for one
            yield from [form] * 600
    for word in tasks.ZH_NOUNS + tasks.ZH_COLOURS + tasks.ZH_NAMES + tasks.ZH_CITIES + list(tasks.ZH_CHARS):
        yield from [word] * 60
    for question, answer in facts.SHENG_EN + facts.SHENG_ZH + facts.TALK_EN + facts.TALK_ZH:
        yield from [answer] * 60


def template_text(template):
    """The words that the template itself writes around tools."""
    text = open(template).read()
    start = text.index("# Tools")
    return text[start:text.index("</IMPORTANT>")].replace("\\n", "\n")


def main():
    template, out = sys.argv[1], sys.argv[2]
    t = Tokenizer(models.BPE(unk_token=None))
    t.normalizer = normalizers.NFC()
    t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(PRE), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    t.decoder = decoders.ByteLevel()
    text = [*corpus(), *[template_text(template)] * 400]
    t.train_from_iterator(text, trainers.BpeTrainer(vocab_size=VOCAB - MARKERS, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    base = t.get_vocab_size()
    assert base == VOCAB - MARKERS, base
    j = json.loads(t.to_str())
    names = NAMES + [f"<|extra_{i}|>" for i in range(len(NAMES), MARKERS)]
    j["added_tokens"] = [dict(id=base + i, content=c, single_word=False, lstrip=False, rstrip=False, normalized=False, special=not any(v in c for v in VISIBLE)) for i, c in enumerate(names)]
    os.makedirs(out, exist_ok=True)
    with open(f"{out}/tokenizer.json", "w") as f:
        json.dump(j, f, ensure_ascii=False)
    end, pad = base + NAMES.index("<|im_end|>"), base + NAMES.index("<|endoftext|>")
    with open(f"{out}/tokenizer_config.json", "w") as f:
        json.dump(dict(tokenizer_class="Qwen2Tokenizer", eos_token="<|im_end|>", pad_token="<|endoftext|>", bos_token=None, add_prefix_space=False, model_max_length=4096,
                       added_tokens_decoder={str(x["id"]): {k: v for k, v in x.items() if k != "id"} for x in j["added_tokens"]}), f, indent=1)
    with open(f"{out}/generation_config.json", "w") as f:
        json.dump(dict(do_sample=True, temperature=0.3, top_k=20, top_p=0.9, eos_token_id=[end, pad], pad_token_id=pad), f, indent=1)
    shutil.copyfile(template, f"{out}/chat_template.jinja")
    for line in ("Hello! I am sheng's small test model.", "blue river: 4821", "你好！我是sheng的小测试模型。", "<tool_call>\n<function=get_weather>\n<parameter=city>\nParis"):
        print(len(Tokenizer.from_file(f"{out}/tokenizer.json").encode(line).tokens), line)


main()
