"""Launch gelu_tanh_mul: on CUDA one kernel without synchronisation, elsewhere torch."""

from __future__ import annotations

import functools

import torch

from gemma4_kernels.gelu_tanh_mul import reference
from gemma4_kernels.launcher import KnownLaunches, Launcher, facts
from gemma4_kernels.rounding import Rounding
from gemma4_kernels.row_arguments import Path, new_like, output_like, refuse_rows, refuse_unlike, takes_kernel
from gemma4_kernels.row_plan import plan_tiles

__all__ = ["gelu_tanh_mul"]

_KNOWN = KnownLaunches()


def gelu_tanh_mul(
    gate: torch.Tensor,
    ple: torch.Tensor,
    *,
    rounding: Rounding = Rounding.FP32,
    out: torch.Tensor | None = None,
    path: Path = "auto",
) -> torch.Tensor:
    """Return gelu_tanh(gate) * ple.

    Args:
        gate: [T, P] bf16, fp16 or fp32, T >= 0; rows any distance apart, unit stride inside a row.
        ple: as gate.
        rounding: where values are rounded, see Rounding.
        path: which implementation to run; "auto" for the one that this device takes.
        out: [T, P]; new if None. May be gate or ple itself; any other overlap with them is undefined.

    Returns:
        [T, P] in gate's dtype.

    Raises:
        ValueError: a shape, dtype, device or stride that is not as above, or a path that this device cannot run.
    """
    eager = rounding is Rounding.EAGER
    key = None
    if out is None and path == "auto":
        key = (*facts(gate, ple), eager)
        if (known := _KNOWN.get(key)) is not None:
            out = new_like(gate)
            if known.again((gate, ple, out)):
                return out
    refuse_rows("gate", gate)
    refuse_unlike("ple", ple, gate)
    out = output_like("out", out, gate)
    rows, width = gate.shape
    if rows == 0:
        return out
    if not takes_kernel(gate, path):
        return out.copy_(reference.gelu_tanh_mul(gate, ple, rounding))
    # One vector load per thread: there is no sum to share.
    plan = plan_tiles(width, rows, 1024)
    launch = _launcher().launch(
        -(-rows // plan.tile),
        (gate, ple, out),
        (gate.stride(0), ple.stride(0), out.stride(0)),
        (rows,),
        (width, plan.block, plan.tile, eager),
        num_warps=plan.num_warps,
        # torch's own gelu is one kernel, in which the compiler fuses too.
        fuse=True,
        early=plan.tile == 1,
    )
    if key is not None:
        _KNOWN.keep(key, launch)
    return out


@functools.cache
def _launcher() -> Launcher:
    # Here: the torch path, which a CPU takes, needs no Triton.
    from gemma4_kernels.gelu_tanh_mul.kernel import gelu_tanh_mul_kernel

    return Launcher(gelu_tanh_mul_kernel)
