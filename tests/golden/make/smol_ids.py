"""The token ids behind the perplexities of smollm2_golden.json: smol_ids.py GGUF OUT.json   (needs gguf, tokenizers; text: Debian's licence files)

smol_golden.py let transformers build a tokenizer from the GGUF. It does not know the pre-tokenizer name "smollm" and splits as GPT-2 does, without
taking digits apart first, so its ids differ from the model's own tokenizer at a few places (spaces and line ends before a number). The perplexities are those of
these ids. This script makes the same ids again and checks them against the counts and first ids that were kept."""
import json
import os
import sys

from gguf import GGUFReader
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers

fields = GGUFReader(sys.argv[1]).fields
strings = lambda key: [bytes(fields[key].parts[i]).decode() for i in fields[key].data]
tokens, merges = strings("tokenizer.ggml.tokens"), strings("tokenizer.ggml.merges")
types = [int(fields["tokenizer.ggml.token_type"].parts[i][0]) for i in fields["tokenizer.ggml.token_type"].data]
tok = Tokenizer(models.BPE(vocab={t: i for i, t in enumerate(tokens)}, merges=[tuple(m.split(" ")) for m in merges]))
tok.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
tok.add_special_tokens([AddedToken(t, special=True, normalized=False) for t, k in zip(tokens, types) if k in (3, 4)])
golden = json.load(open(os.path.join(os.path.dirname(__file__), "../text/smollm2_golden.json")))
out = {}
for name in ("GPL-3", "Apache-2.0"):
    ids = tok.encode(open(f"/usr/share/common-licenses/{name}").read(), add_special_tokens=False).ids
    assert len(ids) == golden[name]["total_tokens"] and ids[:24] == golden[name]["first_ids"]
    out[name] = ids[: golden[name]["tokens"]]
json.dump(out, open(sys.argv[2], "w"))
