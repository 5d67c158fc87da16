"""Quantized folders unpacked with numpy, from the layouts' definitions and from nothing of sheng's: what they say the weights are."""
import json
import pathlib

import numpy as np

TYPES = {"F32": np.float32, "F16": np.float16, "BF16": np.uint16, "I64": np.int64, "I32": np.int32, "I8": np.int8, "U8": np.uint8, "F8_E4M3": np.uint8}
AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]  # integer i of a word is this one of the eight outputs


def read_safetensors(path):
    """{name: array}; bf16 becomes float32."""
    raw = np.fromfile(path, dtype=np.uint8)
    n = int(raw[:8].view(np.uint64)[0])
    head = json.loads(raw[8 : 8 + n].tobytes())
    out = {}
    for name, t in head.items():
        if name == "__metadata__":
            continue
        a, b = t["data_offsets"]
        v = raw[8 + n + a : 8 + n + b].copy().view(TYPES[t["dtype"]]).reshape(t["shape"])
        out[name] = (v.astype(np.uint32) << 16).view(np.float32) if t["dtype"] == "BF16" else v
    return out


def read_folder(folder):
    """All tensors of a folder, through its index where it has one; the index and the files must agree."""
    folder = pathlib.Path(folder)
    index = folder / "model.safetensors.index.json"
    if not index.exists():
        return read_safetensors(folder / "model.safetensors")
    index = json.loads(index.read_text())
    out = {}
    for shard in sorted(set(index["weight_map"].values())):
        for name, v in read_safetensors(folder / shard).items():
            assert index["weight_map"][name] == shard and name not in out, name
            out[name] = v
    assert set(out) == set(index["weight_map"])
    return out


def unpack(words, bits, axis):
    """int32 words to integers along an axis, lowest bits first."""
    per = 32 // bits
    w = np.moveaxis(words, axis, -1).view(np.uint32)[..., None] >> (np.arange(per, dtype=np.uint32) * bits)
    return np.moveaxis((w & ((1 << bits) - 1)).astype(np.int64).reshape(*w.shape[:-2], -1), -1, axis)


def awq(t, base, bits):
    undo = np.argsort(AWQ_ORDER)
    line = lambda w: unpack(w, bits, 1).reshape(w.shape[0], -1, 8)[..., undo].reshape(w.shape[0], -1)
    q, z, s = line(t[base + ".qweight"]), line(t[base + ".qzeros"]), t[base + ".scales"].astype(np.float32)
    g = np.arange(q.shape[0]) // (q.shape[0] // s.shape[0])
    return ((q - z[g]).astype(np.float32) * s[g]).T


def gptq(t, base, bits):
    q, z, s = unpack(t[base + ".qweight"], bits, 0), unpack(t[base + ".qzeros"], bits, 1) + 1, t[base + ".scales"].astype(np.float32)
    g = t[base + ".g_idx"]
    return ((q - z[g]).astype(np.float32) * s[g]).T


def packed_rows(t, base, bits):
    n, k = t[base + ".weight_shape"]
    q, s = unpack(t[base + ".weight_packed"], bits, 1)[:, :k], t[base + ".weight_scale"].astype(np.float32)
    z = unpack(t[base + ".weight_zero_point"], bits, 0)[:n] if base + ".weight_zero_point" in t else np.full(s.shape, 1 << (bits - 1))
    g = t.get(base + ".weight_g_idx", np.arange(k) // (k // s.shape[1]))
    return (q - z[:, g]).astype(np.float32) * s[:, g]


def int_rows(t, base):
    q, s = t[base + ".weight"], t[base + ".weight_scale"].astype(np.float32)
    assert s.shape == (q.shape[0], 1)
    return q.astype(np.float32) * s


def quantized(folder, tensors=None):
    """{module: float32 [N, K]} of a folder's quantized modules, and the names of all other tensors."""
    t = read_folder(folder) if tensors is None else tensors
    q = json.loads((pathlib.Path(folder) / "config.json").read_text())["quantization_config"]
    out, used = {}, set()

    def take(base, w):
        out[base] = np.ascontiguousarray(w)
        used.update(n for n in t if n.rsplit(".", 1)[0] == base)

    for name in t:
        base, end = name.rsplit(".", 1)
        if end == "qweight":
            take(base, awq(t, base, q["bits"]) if q["quant_method"] == "awq" else gptq(t, base, q["bits"]))
        elif end == "weight_packed":
            take(base, packed_rows(t, base, q["config_groups"]["group_0"]["weights"]["num_bits"]))
        elif end == "weight" and t[name].dtype == np.int8:
            take(base, int_rows(t, base))
    return out, sorted(set(t) - used)
