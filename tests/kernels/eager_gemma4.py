"""Hugging Face's own modules and lines of modeling_gemma4.py, on plain tensors."""

from __future__ import annotations

import torch
from transformers.models.gemma4.modeling_gemma4 import Gemma4RMSNorm


def hf_norm(x: torch.Tensor, weight: torch.Tensor | None, eps: float = 1e-6) -> torch.Tensor:
    module = Gemma4RMSNorm(x.shape[-1], eps, with_scale=weight is not None).to(x.device)
    if weight is not None:
        module.weight = torch.nn.Parameter(weight, requires_grad=False)
    return module(x)
