"""Launch post_attention_norms: on CUDA one kernel without synchronisation, elsewhere torch."""

from __future__ import annotations

import functools

import torch

from gemma4_kernels.launcher import KnownLaunches, Launcher, facts
from gemma4_kernels.post_attention_norms import reference
from gemma4_kernels.rounding import Rounding
from gemma4_kernels.row_arguments import (
    Path,
    new_like,
    outputs_like,
    refuse_rows,
    refuse_unlike,
    refuse_weight,
    takes_kernel,
)
from gemma4_kernels.row_plan import EARLY_BELOW, plan_rows

__all__ = ["post_attention_norms"]

_KNOWN = KnownLaunches()


def post_attention_norms(
    attention: torch.Tensor,
    weight: torch.Tensor,
    residual: torch.Tensor,
    next_weight: torch.Tensor,
    eps: float = 1e-6,
    *,
    rounding: Rounding = Rounding.FP32,
    out: tuple[torch.Tensor, torch.Tensor] | None = None,
    path: Path = "auto",
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return residual' = rms(attention) * weight + residual, and rms(residual') * next_weight.

    Args:
        attention: [T, H] bf16, fp16 or fp32, T >= 0; rows any distance apart, unit stride inside a row.
        weight: [H] bf16, fp16 or fp32, contiguous.
        residual: as attention.
        next_weight: as weight.
        eps: of the norms.
        rounding: where values are rounded, see Rounding.
        path: which implementation to run; "auto" for the one that this device takes.
        out: (residual', normed), each [T, H]; new if None, so that who holds `residual` keeps it as it was. They may be
            attention and residual themselves, in either order; any other overlap is undefined.

    Returns:
        (residual', normed), [T, H] in attention's dtype.

    Raises:
        ValueError: a shape, dtype, device or stride that is not as above, or a path that this device cannot run.
    """
    eager = rounding is Rounding.EAGER
    key = None
    if out is None and path == "auto":
        key = (*facts(attention, weight, residual, next_weight), eps, type(eps), eager)
        if (known := _KNOWN.get(key)) is not None:
            out = new_like(attention), new_like(attention)
            if known.again((attention, weight, residual, next_weight, *out)):
                return out
    refuse_rows("attention", attention)
    refuse_unlike("residual", residual, attention)
    refuse_weight("weight", weight, attention)
    refuse_weight("next_weight", next_weight, attention)
    total, normed = outputs_like(("residual'", "normed"), out, attention)
    rows, width = attention.shape
    if rows == 0:
        return total, normed
    if not takes_kernel(attention, path):
        results = reference.post_attention_norms(attention, weight, residual, next_weight, eps, rounding)
        return total.copy_(results[0]), normed.copy_(results[1])
    plan = plan_rows(width, rows)
    launch = _launcher().launch(
        rows,
        (attention, weight, residual, next_weight, total, normed),
        (attention.stride(0), residual.stride(0), total.stride(0), normed.stride(0)),
        (eps,),
        (width, plan.block, rows < EARLY_BELOW, eager),
        num_warps=plan.num_warps,
        fuse=not eager,
        early=rows < EARLY_BELOW,
    )
    if key is not None:
        _KNOWN.keep(key, launch)
    return total, normed


@functools.cache
def _launcher() -> Launcher:
    # Here: the torch path, which a CPU takes, needs no Triton.
    from gemma4_kernels.post_attention_norms.kernel import post_attention_norms_kernel

    return Launcher(post_attention_norms_kernel)
