"""The same in torch."""

from __future__ import annotations

import torch
from torch.nn.functional import gelu


def routed_experts(
    x: torch.Tensor, gate_up: torch.Tensor, down: torch.Tensor, shares: torch.Tensor, ids: torch.Tensor
) -> torch.Tensor:
    """Return [M, H] of x [M, H], gate_up [E, 2 W, H], down [E, H, W], shares [M, k] fp32 and ids [M, k]."""
    made = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
    for expert in ids.unique().tolist():
        if not 0 <= expert < gate_up.shape[0]:
            continue
        share = torch.where(ids == expert, shares.float(), 0.0).sum(1)
        rows = (ids == expert).any(1).nonzero()[:, 0]
        product = (x[rows].float() @ gate_up[expert].float().T).to(x.dtype).float()
        gate, up = product.chunk(2, dim=1)
        gated = (gelu(gate) * up).to(x.dtype).float()
        made[rows] += share[rows, None] * (gated @ down[expert].float().T)
    return made.to(x.dtype)
