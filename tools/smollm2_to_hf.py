#!/usr/bin/env python3
"""Writes the weights of a llama GGUF as an ordinary Hugging Face folder in float32: the exact dequantized values, in HF's names and row order.

    tools/smollm2_to_hf.py IN.gguf OUT_DIR

Made for SmolLM2-135M-Instruct (tools/fetch_smollm2.py), so that quantizers have an unquantized real model to start from. Writes model.safetensors,
config.json, tokenizer.json, tokenizer_config.json and generation_config.json; OUT_DIR must not exist. Needs numpy and nothing else. Reads
GGUF v2 and v3, tensors in F32, F16, BF16, Q8_0, Q4_1 and Q6_K, architecture llama, pre-tokenizer smollm; anything else is refused by name.
"""
import json
import pathlib
import struct
import sys

try:
    import numpy as np
except ImportError:
    sys.exit("smollm2_to_hf.py: the package numpy is missing; `pip install numpy`")

SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
STRING, ARRAY = 8, 9
# GGUF type: name, weights of a block, bytes of a block
TYPES = {0: ("F32", 1, 4), 1: ("F16", 1, 2), 3: ("Q4_1", 32, 20), 8: ("Q8_0", 32, 34), 14: ("Q6_K", 256, 210), 30: ("BF16", 1, 2)}
CONTROL = 3  # token_type


class Gguf:
    """Metadata in .meta, tensors in .tensors: {name: (type, dims as HF has them, offset)}."""

    def __init__(self, path):
        self.data = np.memmap(path, dtype=np.uint8, mode="r")
        self.at = 0
        if bytes(self.data[:4]) != b"GGUF":
            sys.exit(f"{path}: not a GGUF file")
        self.at = 4
        version, n_tensors, n_meta = self.scalar(4), self.scalar(10), self.scalar(10)
        if version not in (2, 3):
            sys.exit(f"{path}: GGUF version {version}, wanted 2 or 3")
        self.meta = {}
        for _ in range(n_meta):
            key = self.string()
            self.meta[key] = self.value(self.scalar(4))
        self.tensors = {}
        for _ in range(n_tensors):
            name = self.string()
            dims = [self.scalar(10) for _ in range(self.scalar(4))]
            kind, offset = self.scalar(4), self.scalar(10)
            self.tensors[name] = (kind, dims[::-1], offset)
        align = self.meta.get("general.alignment", 32)
        self.base = (self.at + align - 1) // align * align

    def scalar(self, kind):
        size = struct.calcsize(SCALARS[kind])
        value = struct.unpack(SCALARS[kind], self.data[self.at : self.at + size].tobytes())[0]
        self.at += size
        return value

    def string(self):
        n = self.scalar(10)
        text = self.data[self.at : self.at + n].tobytes().decode("utf-8", "surrogateescape")
        self.at += n
        return text

    def value(self, kind):
        if kind == STRING:
            return self.string()
        if kind == ARRAY:
            item, n = self.scalar(4), self.scalar(10)
            return [self.value(item) for _ in range(n)]
        return self.scalar(kind)

    def floats(self, name):
        """A tensor's values as float32: what each format's definition gives, in float32 arithmetic."""
        kind, dims, offset = self.tensors[name]
        if kind not in TYPES:
            sys.exit(f"tensor {name}: GGUF type {kind} is not read here; {', '.join(t[0] for t in TYPES.values())} are")
        label, weights, size = TYPES[kind]
        count = int(np.prod(dims))
        blocks = count // weights
        raw = np.asarray(self.data[self.base + offset : self.base + offset + blocks * size])
        if count % weights or len(raw) != blocks * size:
            sys.exit(f"tensor {name}: {label} {dims} does not fit the file")
        return DEQUANT[label](raw.reshape(blocks, size)).reshape(dims)


def half(b):
    return b.copy().view("<f2").astype(np.float32)


def f32(b):
    return b.copy().view("<f4")


def bf16(b):
    return (b.copy().view("<u2").astype(np.uint32) << 16).view(np.float32)


def q8_0(b):
    return half(b[:, :2]) * b[:, 2:].view(np.int8).astype(np.float32)


def q4_1(b):
    d, m = half(b[:, 0:2]), half(b[:, 2:4])
    q = np.concatenate([b[:, 4:] & 15, b[:, 4:] >> 4], axis=1)  # low halves are weights 0 to 15
    return q.astype(np.float32) * d + m


def q6_k(b):
    low, high, scales, d = b[:, :128], b[:, 128:192], b[:, 192:208].view(np.int8).astype(np.float32), half(b[:, 208:210])
    out = np.empty((len(b), 256), np.float32)
    for part in range(2):  # 128 weights from 64 bytes of low and 32 of high bits, as four runs of 32
        l, h = low[:, 64 * part : 64 * part + 64], high[:, 32 * part : 32 * part + 32]
        for run in range(4):
            nibble = l[:, 32 * (run % 2) : 32 * (run % 2) + 32] >> (4 * (run // 2)) & 15
            q = (nibble | (h >> (2 * run) & 3) << 4).astype(np.float32) - 32
            at = 128 * part + 32 * run
            scale = np.repeat(scales[:, at // 16 : at // 16 + 2], 16, axis=1)
            out[:, at : at + 32] = d * scale * q
    return out


DEQUANT = {"F32": f32, "F16": half, "BF16": bf16, "Q8_0": q8_0, "Q4_1": q4_1, "Q6_K": q6_k}

LAYER = {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
         "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}
TOP = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight", "output.weight": "lm_head.weight"}


def hf_name(name):
    if name in TOP:
        return TOP[name]
    parts = name.split(".")
    if len(parts) == 4 and parts[0] == "blk" and parts[2] in LAYER and parts[3] == "weight":
        return f"model.layers.{int(parts[1])}.{LAYER[parts[2]]}.weight"
    sys.exit(f"tensor {name} is not known in a llama model")


def unpermute(w, heads):
    """The converter put the rows of a head as pairs (i, i + d/2) -> (2i, 2i + 1); this puts them back."""
    rows, cols = w.shape
    return w.reshape(heads, rows // heads // 2, 2, cols).swapaxes(1, 2).reshape(rows, cols)


def write_safetensors(path, tensors):
    header, at = {"__metadata__": {"format": "pt"}}, 0
    for name, w in tensors.items():
        header[name] = {"dtype": "F32", "shape": list(w.shape), "data_offsets": [at, at + w.nbytes]}
        at += w.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for w in tensors.values():
            f.write(np.ascontiguousarray(w, "<f4").tobytes())


def tokenizer_json(meta):
    tokens, kinds = meta["tokenizer.ggml.tokens"], meta["tokenizer.ggml.token_type"]
    added = [i for i, k in enumerate(kinds) if k in (CONTROL, 4)]
    return {
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": [{"id": i, "content": tokens[i], "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
                          "special": kinds[i] == CONTROL} for i in added],
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Digits", "individual_digits": True},
            {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}]},
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None,
                  "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                  "vocab": {t: i for i, t in enumerate(tokens)}, "merges": meta["tokenizer.ggml.merges"]},
    }


def configs(meta, tensors):
    vocab, hidden = tensors["model.embed_tokens.weight"].shape
    heads = meta["llama.attention.head_count"]
    bos, eos = meta["tokenizer.ggml.bos_token_id"], meta["tokenizer.ggml.eos_token_id"]
    tokens = meta["tokenizer.ggml.tokens"]
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": vocab, "hidden_size": hidden,
        "intermediate_size": meta["llama.feed_forward_length"], "num_hidden_layers": meta["llama.block_count"], "num_attention_heads": heads,
        "num_key_value_heads": meta.get("llama.attention.head_count_kv", heads), "head_dim": hidden // heads, "hidden_act": "silu",
        "max_position_embeddings": meta["llama.context_length"], "rms_norm_eps": float(f"{meta['llama.attention.layer_norm_rms_epsilon']:.6g}"),
        "rope_theta": float(meta.get("llama.rope.freq_base", 10000.0)), "rope_scaling": None, "attention_bias": False, "mlp_bias": False,
        "tie_word_embeddings": "lm_head.weight" not in tensors, "bos_token_id": bos, "eos_token_id": eos, "torch_dtype": "float32"}
    tokenizer = {"tokenizer_class": "GPT2Tokenizer", "bos_token": tokens[bos], "eos_token": tokens[eos], "add_prefix_space": False,
                 "clean_up_tokenization_spaces": False, "model_max_length": meta["llama.context_length"],
                 "chat_template": meta["tokenizer.chat_template"]}
    return {"config.json": config, "tokenizer_config.json": tokenizer, "tokenizer.json": tokenizer_json(meta),
            "generation_config.json": {"bos_token_id": bos, "eos_token_id": eos}}


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    g, out = Gguf(sys.argv[1]), pathlib.Path(sys.argv[2])
    for key, wanted in (("general.architecture", "llama"), ("tokenizer.ggml.model", "gpt2"), ("tokenizer.ggml.pre", "smollm")):
        if g.meta.get(key) != wanted:
            sys.exit(f"{sys.argv[1]}: {key} is {g.meta.get(key)!r}, wanted {wanted!r}")
    if g.meta.get("llama.rope.scaling.type", "none") != "none" or "rope_freqs.weight" in g.tensors:
        sys.exit(f"{sys.argv[1]}: scaled rotary embeddings are not written here")
    heads = {"attn_q": g.meta["llama.attention.head_count"], "attn_k": g.meta.get("llama.attention.head_count_kv")}
    tensors = {}
    for name in g.tensors:
        w = g.floats(name)
        kind = name.split(".")[2] if name.startswith("blk.") else ""
        tensors[hf_name(name)] = unpermute(w, heads[kind]) if kind in heads else w
    out.mkdir(parents=True)
    write_safetensors(out / "model.safetensors", tensors)
    for file, value in configs(g.meta, tensors).items():
        (out / file).write_text(json.dumps(value, ensure_ascii=False, indent=2 if file != "tokenizer.json" else None) + "\n")
    print(f"{out}: {len(tensors)} tensors, {sum(w.nbytes for w in tensors.values())} bytes")


if __name__ == "__main__":
    main()
