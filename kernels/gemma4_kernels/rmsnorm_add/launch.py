"""Launch rmsnorm_add: on CUDA one kernel without synchronisation, elsewhere torch."""

from __future__ import annotations

import functools

import torch

from gemma4_kernels.launcher import KnownLaunches, Launcher, facts
from gemma4_kernels.rmsnorm_add import reference
from gemma4_kernels.rounding import Rounding
from gemma4_kernels.row_arguments import (
    Path,
    new_like,
    output_like,
    refuse_rows,
    refuse_unlike,
    refuse_weight,
    takes_kernel,
)
from gemma4_kernels.row_plan import EARLY_BELOW, plan_rows

__all__ = ["rmsnorm_add"]

_KNOWN = KnownLaunches()


def rmsnorm_add(
    x: torch.Tensor,
    weight: torch.Tensor,
    residual: torch.Tensor,
    eps: float = 1e-6,
    *,
    rounding: Rounding = Rounding.FP32,
    out: torch.Tensor | None = None,
    path: Path = "auto",
) -> torch.Tensor:
    """Return rms(x) * weight + residual.

    Args:
        x: [T, H] bf16, fp16 or fp32, T >= 0; rows any distance apart, unit stride inside a row.
        weight: [H] bf16, fp16 or fp32, contiguous.
        residual: as x.
        eps: of the norm.
        rounding: where values are rounded, see Rounding.
        path: which implementation to run; "auto" for the one that this device takes.
        out: [T, H]; new if None. May be x or residual itself; any other overlap with them is undefined.

    Returns:
        [T, H] in x's dtype.

    Raises:
        ValueError: a shape, dtype, device or stride that is not as above, or a path that this device cannot run.
    """
    eager = rounding is Rounding.EAGER
    key = None
    if out is None and path == "auto":
        key = (*facts(x, weight, residual), eps, type(eps), eager)
        if (known := _KNOWN.get(key)) is not None:
            out = new_like(x)
            if known.again((x, weight, residual, out)):
                return out
    refuse_rows("x", x)
    refuse_unlike("residual", residual, x)
    refuse_weight("weight", weight, x)
    out = output_like("out", out, x)
    rows, width = x.shape
    if rows == 0:
        return out
    if not takes_kernel(x, path):
        return out.copy_(reference.rmsnorm_add(x, weight, residual, eps, rounding))
    plan = plan_rows(width, rows)
    launch = _launcher().launch(
        rows,
        (x, weight, residual, out),
        (x.stride(0), residual.stride(0), out.stride(0)),
        (eps,),
        (width, plan.block, eager),
        num_warps=plan.num_warps,
        fuse=not eager,
        early=rows < EARLY_BELOW,
    )
    if key is not None:
        _KNOWN.keep(key, launch)
    return out


@functools.cache
def _launcher() -> Launcher:
    # Here: the torch path, which a CPU takes, needs no Triton.
    from gemma4_kernels.rmsnorm_add.kernel import rmsnorm_add_kernel

    return Launcher(rmsnorm_add_kernel)
