"""The router's scale as the kernel takes it: made once, when the weights are loaded or have changed."""

from __future__ import annotations

from typing import NamedTuple

import torch

from gemma4_kernels.rounding import Rounding


class RouterScale(NamedTuple):
    """values: [H] fp32. rounding: the mode that they are for, and so the mode of the op that takes them."""

    values: torch.Tensor
    rounding: Rounding


def fold_router_scale(scale: torch.Tensor, rounding: Rounding = Rounding.FP32) -> RouterScale:
    """scale * H^-0.5 in fp32; in EAGER mode the scale alone, because eager multiplies, and rounds, one after the other.

    SGLang 0.5.13.post1 folds in the model's dtype, where H^-0.5 is a bf16: at H = 2816 all logits are 0.24% low. It
    folds at the first forward and never again; call this after every change of the weights.

    Args:
        scale: [H] floating.

    Raises:
        ValueError: not one dimension, or not floating.
    """
    if scale.dim() != 1 or not scale.is_floating_point():
        raise ValueError(f"scale is {list(scale.shape)} {scale.dtype}, expected floating [H]")
    values = scale.detach().float()
    if rounding is Rounding.FP32:
        values = values * scale.shape[0] ** -0.5
    return RouterScale(values.contiguous(), rounding)
