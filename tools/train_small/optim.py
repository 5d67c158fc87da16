"""Muon for the matrices and AdamW for the rest.

Muon (K. Jordan et al., 2024): momentum, then the update's singular values are brought to about one by five Newton-Schulz steps. Matrices of one shape are stacked, so that the
products are large.
"""
import torch

A, B, C = 3.4445, -4.7750, 2.0315  # the quintic of the reference implementation


def orthogonal(g):
    """[N, m, n] -> the same with singular values near 1."""
    tall = g.shape[-2] > g.shape[-1]
    x = (g.transpose(-1, -2) if tall else g).bfloat16()  # enough for a direction
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(5):
        s = x @ x.transpose(-1, -2)
        x = A * x + (B * s + C * s @ s) @ x
    return (x.transpose(-1, -2) if tall else x).to(g.dtype)


class Muon(torch.optim.Optimizer):
    """For parameters of 2 or 3 dimensions (3: a stack of matrices)."""

    def __init__(self, params, lr, momentum=0.95, weight_decay=0.0):
        super().__init__(params, dict(lr=lr, momentum=momentum, weight_decay=weight_decay))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            shapes = {}
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if "m" not in state:
                    state["m"] = torch.zeros_like(p)
                state["m"].mul_(group["momentum"]).add_(p.grad)
                shapes.setdefault(tuple(p.shape[-2:]), []).append((p, p.grad + group["momentum"] * state["m"]))
            for (rows, cols), entries in shapes.items():
                update = orthogonal(torch.cat([u.reshape(-1, rows, cols) for _, u in entries]))
                scale = 0.2 * max(rows, cols) ** 0.5  # the root mean square of an AdamW update
                at = 0
                for p, u in entries:
                    n = u.numel() // (rows * cols)
                    p.mul_(1 - group["lr"] * group["weight_decay"]).add_(update[at:at + n].view_as(p), alpha=-group["lr"] * scale)
                    at += n


def split(model, head):
    """(matrices for Muon, the rest for AdamW) of all that is trained."""
    matrices, rest, seen = [], [], set()
    for name, p in [*model.named_parameters(), *head.named_parameters()]:
        if id(p) in seen:
            continue
        seen.add(id(p))
        small = p.dim() < 2 or min(p.shape[-2:]) < 16
        (rest if small or "embed_tokens" in name or "lm_head" in name or "conv1d" in name else matrices).append(p)
    return matrices, rest
