"""Launch triple_rmsnorm: on CUDA one kernel without synchronisation, elsewhere torch."""

from __future__ import annotations

import functools

import torch

from gemma4_kernels.launcher import KnownLaunches, Launcher, facts
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
from gemma4_kernels.triple_rmsnorm import reference
from gemma4_kernels.triple_rmsnorm.reference import TripleNormed

__all__ = ["TripleNormed", "triple_rmsnorm"]

_KNOWN = KnownLaunches()


def triple_rmsnorm(
    attention: torch.Tensor,
    weight: torch.Tensor,
    residual: torch.Tensor,
    router_scale: torch.Tensor,
    dense_weight: torch.Tensor,
    experts_weight: torch.Tensor,
    eps: float = 1e-6,
    *,
    rounding: Rounding = Rounding.FP32,
    out: tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor] | None = None,
    path: Path = "auto",
    lets_in: bool = True,
) -> TripleNormed:
    """Return residual' = rms(attention) * weight + residual, and its norm with three weights.

    Args:
        attention: [T, H] bf16, fp16 or fp32, T >= 0; rows any distance apart, unit stride inside a row.
        weight: [H] bf16, fp16 or fp32, contiguous.
        residual: as attention.
        router_scale: as weight, the checkpoint's own: H^-0.5 comes in here, in fp32. SGLang 0.5.13.post1 folds it in at
            the first forward and in the model's dtype, where H^-0.5 is a bf16: at H = 2816 all logits are 0.24% low,
            and weights that are updated later leave the old scale behind.
        dense_weight: as weight.
        experts_weight: as weight.
        eps: of the norms.
        rounding: where values are rounded, see Rounding.
        path: which implementation to run; "auto" for the one that this device takes.
        out: four of [T, H]; new if None, so that who holds `residual` keeps it as it was. Any two of them may be
            attention and residual themselves; any other overlap is undefined.
        lets_in: Whether the kernel behind may start before this one's inputs are there, as one that streams weights
            gains by; others only take room from the kernel ahead.

    Returns:
        (residual', router, dense, experts), [T, H] in attention's dtype.

    Raises:
        ValueError: a shape, dtype, device or stride that is not as above, or a path that this device cannot run.
    """
    eager = rounding is Rounding.EAGER
    key = None
    if out is None and path == "auto":
        inputs = attention, weight, residual, router_scale, dense_weight, experts_weight
        key = (*facts(*inputs), eps, type(eps), eager, lets_in)
        if (known := _KNOWN.get(key)) is not None:
            out = TripleNormed(*[new_like(attention) for _ in TripleNormed._fields])
            if known.again((*inputs, *out)):
                return out
    refuse_rows("attention", attention)
    refuse_unlike("residual", residual, attention)
    refuse_weight("weight", weight, attention)
    refuse_weight("dense_weight", dense_weight, attention)
    refuse_weight("experts_weight", experts_weight, attention)
    refuse_weight("router_scale", router_scale, attention)
    outputs = TripleNormed(*outputs_like(TripleNormed._fields, out, attention))
    rows, width = attention.shape
    if rows == 0:
        return outputs
    weights = (router_scale, dense_weight, experts_weight)
    if not takes_kernel(attention, path):
        results = reference.triple_rmsnorm(attention, weight, residual, *weights, eps, rounding)
        return TripleNormed(*(output.copy_(result) for output, result in zip(outputs, results, strict=True)))
    plan = plan_rows(width, rows)
    launch = _launcher().launch(
        rows,
        (attention, weight, residual, router_scale, dense_weight, experts_weight, *outputs),
        (attention.stride(0), residual.stride(0), *(output.stride(0) for output in outputs)),
        (eps, width**-0.5),
        (width, plan.block, rows < EARLY_BELOW, eager),
        num_warps=plan.num_warps,
        fuse=not eager,
        early=rows < EARLY_BELOW,
        lets_in=lets_in,
    )
    if key is not None:
        _KNOWN.keep(key, launch)
    return outputs


@functools.cache
def _launcher() -> Launcher:
    # Here: the torch path, which a CPU takes, needs no Triton.
    from gemma4_kernels.triple_rmsnorm.kernel import triple_rmsnorm_kernel

    return Launcher(triple_rmsnorm_kernel)
