"""Final logit softcapping in torch: the Triton interpreter has no libdevice.tanh."""

from __future__ import annotations

import torch


def softcap_inplace(logits: torch.Tensor, cap: float) -> torch.Tensor:
    """`logits <- cap * tanh(logits / cap)` in place, in fp32 as the kernel does. logits: [tokens, vocab]."""
    return logits.copy_(torch.tanh(logits.float() / cap) * cap)
