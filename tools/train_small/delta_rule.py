"""The gated delta rule for training on a CPU: transformers' torch_chunk_gated_delta_rule with another chunk and without its triangular solver.

Same formula (Yang et al., "Gated Delta Networks", the chunked UT transform): a chunk's system (I + L) with L strictly lower triangular is inverted by halves,
[[A, 0], [C, B]]^-1 = [[A^-1, 0], [-B^-1 C A^-1, B^-1]], from blocks of 1 up: products of small matrices only, and stable where keys repeat (powers of L are not). LAPACK's batched
solver took three fifths of a step. test_delta_rule.py holds it against transformers' function, values and gradients.
"""
import torch

CHUNK = 32


def _level_masks(n):
    """For blocks of 1, 2, 4 .. n/2: where the lower left block of each pair lies, [levels, n, n]."""
    i, j = torch.arange(n)[:, None], torch.arange(n)[None, :]
    masks, s = [], 1
    while s < n:
        masks.append(((i // (2 * s) == j // (2 * s)) & (i % (2 * s) >= s) & (j % (2 * s) < s)).float())
        s *= 2
    return torch.stack(masks)


MASKS = _level_masks(CHUNK)


class UnitInverse(torch.autograd.Function):
    """(I + L)^-1 of strictly lower triangular L [..., n, n], n = CHUNK."""

    @staticmethod
    def forward(ctx, lower):
        n = lower.shape[-1]
        flat = lower.reshape(-1, n, n)
        x = torch.eye(n).expand_as(flat) - flat * MASKS[0]
        for mask in MASKS[1:]:
            x = torch.baddbmm(x, x, (flat * mask) @ x, alpha=-1)
        ctx.save_for_backward(x)
        return x.view_as(lower)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        n = x.shape[-1]
        xt = x.transpose(-1, -2)
        return -(xt @ grad.reshape(-1, n, n) @ xt).view_as(grad)


def chunk_gated_delta_rule(query, key, value, g, beta, chunk_size=None, initial_state=None, output_final_state=False, use_qk_l2norm_in_kernel=False, **kwargs):
    """query, key [B, T, Hk, dk], value [B, T, Hv, dv], g and beta [B, T, Hv] -> ([B, T, Hv, dv], None). Training only: no states go in or out."""
    assert initial_state is None and not output_final_state and use_qk_l2norm_in_kernel
    b, t, hv, dv = value.shape
    hk, dk = key.shape[2:]
    pad = -t % CHUNK
    n = (t + pad) // CHUNK

    def chunks(x):  # [B, T, H, d] -> [B, H, n, CHUNK, d]
        x = torch.nn.functional.pad(x.float(), (0, 0, 0, 0, 0, pad))
        return x.view(b, n, CHUNK, x.shape[2], x.shape[3]).permute(0, 3, 1, 2, 4)

    def unit(x):
        return x * torch.rsqrt(x.pow(2).sum(-1, keepdim=True) + 1e-6)

    q = chunks(unit(query) * dk**-0.5).repeat_interleave(hv // hk, 1)
    k = chunks(unit(key)).repeat_interleave(hv // hk, 1)
    v = chunks(value)
    gate = chunks(torch.stack([g, beta], -1))
    decay = gate[..., 0].cumsum(-1)                                      # [B, H, n, CHUNK]
    bt = gate[..., 1:]
    ratio = (decay.unsqueeze(-1) - decay.unsqueeze(-2)).tril().exp().tril()  # e^(d_i - d_j) for j <= i
    kb = k * bt
    inverse = UnitInverse.apply(((kb @ k.transpose(-1, -2)) * ratio).tril(-1))
    new = inverse @ (v * bt)
    old = inverse @ (kb * decay.exp().unsqueeze(-1))
    inside = (q @ k.transpose(-1, -2)) * ratio
    q = q * decay.exp().unsqueeze(-1)
    k = (k * (decay[..., -1:] - decay).exp().unsqueeze(-1)).transpose(-1, -2)
    last = decay[..., -1].exp()[..., None, None]
    state, out = torch.zeros(b, hv, dk, dv), []
    for i in range(n):
        fresh = new[:, :, i] - old[:, :, i] @ state
        out.append(q[:, :, i] @ state + inside[:, :, i] @ fresh)
        state = state * last[:, :, i] + k[:, :, i] @ fresh
    out = torch.stack(out, 2)                                            # [B, H, n, CHUNK, dv]
    return out.permute(0, 2, 3, 1, 4).reshape(b, t + pad, hv, dv)[:, :t], None


def install():
    """Puts it in place of transformers' function, for training."""
    from transformers.models.qwen3_5 import modeling_qwen3_5 as dense
    from transformers.models.qwen3_5_moe import modeling_qwen3_5_moe as moe
    dense.torch_chunk_gated_delta_rule = moe.torch_chunk_gated_delta_rule = chunk_gated_delta_rule
