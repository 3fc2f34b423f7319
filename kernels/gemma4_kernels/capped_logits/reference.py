"""The same in torch."""

from __future__ import annotations

import torch


def capped_logits(logits: torch.Tensor, cap: float) -> torch.Tensor:
    """[T, V] fp32."""
    return torch.tanh(logits.float() / cap) * cap
