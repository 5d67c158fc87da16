"""The searches of src/quant against the same computed with numpy in float64: equal scales, equal codes up to ties.

What is written here follows the papers (AWQ, arXiv 2306.00978; GPTQ, arXiv 2210.17323) and the objective and grid that src/quant/awq.h states, not the C code."""
import json
import os
import struct
import subprocess

import numpy as np
import pytest

DUMP = os.path.join(os.path.dirname(os.environ.get("SHENG_BIN", "build/release/sheng")), "tests/quant/dump")
TYPES = {"F32": np.float32, "F64": np.float64, "U8": np.uint8, "I32": np.int32}
ENDS = [1.0, 0.92, 0.84, 0.76, 0.68, 0.6]


def load(path):
    raw = open(path, "rb").read()
    n = struct.unpack("<Q", raw[:8])[0]
    head = json.loads(raw[8:8 + n])
    return {k: np.frombuffer(raw[8 + n + v["data_offsets"][0]:8 + n + v["data_offsets"][1]], TYPES[v["dtype"]]).reshape(v["shape"]) for k, v in head.items() if k != "__metadata__"}


def params(lo, hi, bits, symmetric):
    """Scale (rounded to float16, as stored) and zero point of a range."""
    lo, hi = np.minimum(lo, 0), np.maximum(hi, 0)
    if symmetric:
        s = np.maximum(-lo, hi) / (2 ** (bits - 1) - 1)
    else:
        s = (hi - lo) / (2 ** bits - 1)
    s = np.maximum(s.astype(np.float16).astype(np.float64), 2.0 ** -24)
    z = np.full_like(s, 2 ** (bits - 1)) if symmetric else np.clip(np.rint(-lo / s), 0, 2 ** bits - 1)
    return s, z


def nearest(w, s, z, bits):
    """(rounded weights, codes) of w [N, G, g]."""
    q = np.clip(np.rint(w / s[..., None]) + z[..., None], 0, 2 ** bits - 1)
    return s[..., None] * (q - z[..., None]), q


def rtn(w, group, bits, symmetric):
    n, k = w.shape
    g = w.reshape(n, k // group, group)
    return nearest(g, *params(g.min(-1), g.max(-1), bits, symmetric), bits)[0].reshape(n, k)


def awq_error(w, x, s, group, bits, symmetric):
    return (((rtn(w * s, group, bits, symmetric) / s - w) @ x.T) ** 2).sum()


def awq_codes(w, x, s, group, bits, symmetric):
    """Per group the range that costs least in the group's own outputs; per row that or rounding to nearest, whichever costs less in the row's."""
    n, k = w.shape
    g = (w * s).reshape(n, k // group, group)
    back = s.reshape(1, k // group, group)
    xg = x.reshape(-1, k // group, group)
    best = np.full((n, k // group), np.inf)
    second = np.full((n, k // group), np.inf)
    scale, zero = np.zeros_like(best), np.zeros_like(best)
    for a in ENDS:
        for b in [a] if symmetric else ENDS:
            sc, z = params(g.min(-1) * a, g.max(-1) * b, bits, symmetric)
            d = (nearest(g, sc, z, bits)[0] - g) / back
            cost = (np.einsum("ngc,tgc->ngt", d, xg) ** 2).sum(-1)
            better = cost < best
            second = np.where(better, best, np.minimum(second, cost))
            scale, zero, best = np.where(better, sc, scale), np.where(better, z, zero), np.where(better, cost, best)
    tie = (second - best) <= 1e-4 * best
    sn, zn = params(g.min(-1), g.max(-1), bits, symmetric)

    def row_error(sc, z):
        return ((((nearest(g, sc, z, bits)[0] - g) / back).reshape(n, k) @ x.T) ** 2).sum(-1)
    keep = row_error(scale, zero) < row_error(sn, zn)
    scale, zero = np.where(keep[:, None], scale, sn), np.where(keep[:, None], zero, zn)
    return nearest(g, scale, zero, bits)[1].reshape(n, k), scale, zero, tie


def gptq_codes(w, x, order, group, bits, symmetric, damp):
    n, k = w.shape
    h = x.T @ x
    h = h + np.eye(k) * damp * np.diag(h).mean()
    g = w.reshape(n, k // group, group)
    s, z = params(g.min(-1), g.max(-1), bits, symmetric)
    u = np.linalg.cholesky(np.linalg.inv(h[np.ix_(order, order)])).T
    left, q, margin = w[:, order].copy(), np.zeros((n, k)), np.zeros((n, k))
    for i in range(k):
        si, zi = s[:, order[i] // group], z[:, order[i] // group]
        v = left[:, i] / si
        q[:, i] = np.clip(np.rint(v) + zi, 0, 2 ** bits - 1)
        margin[:, i] = np.abs(np.abs(v - np.floor(v)) - 0.5)
        e = (left[:, i] - si * (q[:, i] - zi)) / u[i, i]
        left[:, i:] -= e[:, None] * u[i, i:]
    out, near = np.zeros((n, k)), np.zeros((n, k))
    out[:, order], near[:, order] = q, margin
    return out, s, z, near


@pytest.mark.parametrize("n, k, tokens, group, bits, symmetric", [(96, 128, 200, 32, 4, 0), (40, 256, 300, 64, 4, 1), (130, 384, 500, 128, 4, 0), (24, 96, 150, 32, 8, 0)])
def test_scales_and_codes_are_those_of_numpy(tmp_path, n, k, tokens, group, bits, symmetric):
    path = tmp_path / "d.safetensors"
    subprocess.run([DUMP, path, *map(str, (n, k, tokens, group, bits, symmetric, n))], check=True)
    d = load(path)
    w, x = d["w"].astype(np.float64), d["x"].astype(np.float64)

    mean = np.abs(x).mean(0)
    assert np.allclose(d["mean"][0], mean, rtol=1e-5)
    g = np.abs(w.reshape(n, k // group, group))
    wmean = (g / g.max(-1, keepdims=True)).mean(0).reshape(k)
    assert np.allclose(d["wmean"][0], wmean, rtol=1e-5)
    cands = [np.ones(k)]
    for i in range(1, 41):
        a = i / 20 if i <= 20 else (i - 20) / 20
        s = mean ** a if i <= 20 else mean ** a / (wmean ** (1 - a) + 1e-4)
        s = np.clip(s, 1e-4, 1e4)
        cands.append(s / np.sqrt(s.min() * s.max()))
    assert np.allclose(d["cand"], cands, rtol=1e-4)
    errors = np.array([awq_error(w, x, s.astype(np.float64), group, bits, symmetric) for s in d["cand"]])
    assert np.allclose(d["err"][0], errors, rtol=2e-3)
    best = int(errors.argmin())
    assert int(d["err"][0].argmin()) == best and best > 0

    q, scale, zero, tie = awq_codes(w, x, d["cand"][best].astype(np.float64), group, bits, symmetric)
    same = (np.abs(d["awq.scales"] - scale) <= 2e-3 * scale) | tie
    assert same.mean() > 0.999
    ok = np.repeat(np.abs(d["awq.scales"] - scale) <= 1e-6 * scale, group, axis=1)
    assert ok.mean() > 0.99
    assert (d["awq.q"][ok] != q[ok]).mean() < 1e-3 and np.abs(d["awq.q"][ok].astype(int) - q[ok]).max() <= 1
    if not symmetric:
        assert (d["awq.zeros"] == zero)[np.abs(d["awq.scales"] - scale) <= 1e-6 * scale].mean() > 0.999
    chosen, plain = d["errors"][0][1], d["errors"][0][0]
    assert chosen <= plain <= errors[best] * 1.002 and (bits == 8 or chosen < plain)  # 8 bits gain nothing by narrower ranges here

    order = d["gptq.order"][0]
    h = (x ** 2).sum(0)
    assert (np.diff(h[order]) <= 1e-4 * h.max()).all() and sorted(order) == list(range(k))
    q, s, z, margin = gptq_codes(w, x, order, group, bits, symmetric, 0.01)
    assert np.allclose(d["gptq.scales"], s, rtol=1e-6)
    row_ok = (d["gptq.q"] == q).all(1)
    assert row_ok.mean() > 0.75  # one tie decided the other way changes what is left for all later columns of its row
    for r in np.where(~row_ok)[0]:
        first = next(c for c in order if d["gptq.q"][r, c] != q[r, c])
        assert margin[r, first] < 2e-3, "the first difference of a row is a tie"
    assert d["errors"][0][3] < 0.9 * d["errors"][0][2]
