"""The same in torch."""

from __future__ import annotations

import torch

from gemma4_kernels.rounding import Rounding


def gelu_tanh_mul(gate: torch.Tensor, ple: torch.Tensor, rounding: Rounding) -> torch.Tensor:
    """[T, P] in gate's dtype."""
    if rounding is Rounding.EAGER:
        return torch.nn.functional.gelu(gate, approximate="tanh") * ple
    x = gate.float()
    inner = 2 * (2 / torch.pi) ** 0.5 * (x + 0.044715 * x * x * x)
    return (x * torch.sigmoid(inner) * ple.float()).to(gate.dtype)
