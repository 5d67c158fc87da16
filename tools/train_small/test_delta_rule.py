"""Holds delta_rule.py against transformers' function: values and gradients at odd lengths, with keys that repeat. Run by pytest."""
import pytest
import torch

import delta_rule
from transformers.models.qwen3_5.modeling_qwen3_5 import torch_chunk_gated_delta_rule as reference


@pytest.mark.parametrize("t,repeat", [(1, False), (31, False), (64, True), (200, False), (333, True)])
def test_equals_transformers(t, repeat):
    torch.manual_seed(t)
    q, k, v = torch.randn(2, t, 2, 32), torch.randn(2, t, 2, 32), torch.randn(2, t, 4, 32)
    if repeat:
        k = k[:, :1].expand_as(k) + 0.01 * k
    g, beta = -torch.rand(2, t, 4) * (0.01 if repeat else 2), torch.rand(2, t, 4) * 0.99
    results = []
    for f in (reference, delta_rule.chunk_gated_delta_rule):
        leaves = [x.clone().requires_grad_() for x in (q, k, v, g, beta)]
        out, _ = f(leaves[0], leaves[1], leaves[2], g=leaves[3], beta=leaves[4], use_qk_l2norm_in_kernel=True)
        (out * torch.linspace(-1, 1, out.numel()).view_as(out)).sum().backward()
        results.append([out.detach(), *[x.grad for x in leaves]])
    for a, b in zip(*results):
        assert torch.allclose(a, b, atol=2e-5 * max(1.0, a.abs().max().item()), rtol=1e-4)
