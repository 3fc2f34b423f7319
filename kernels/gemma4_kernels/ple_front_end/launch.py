"""Launch ple_front_end: on CUDA one kernel without synchronisation, elsewhere torch."""

from __future__ import annotations

import functools

import torch

from gemma4_kernels.launcher import KnownLaunches, Launcher, facts
from gemma4_kernels.ple_front_end import reference
from gemma4_kernels.rounding import Rounding
from gemma4_kernels.row_arguments import DTYPES, Path, new_like, takes_kernel
from gemma4_kernels.row_plan import MAX_WIDTH, plan_tiles

__all__ = ["ple_front_end"]

_KNOWN = KnownLaunches()

_MAX_PAIRS = 2**31 - 1
# From here on a warp takes several rows, one after the other's loads.
_MANY_PAIRS = 1 << 14


def ple_front_end(
    projection: torch.Tensor,
    weight: torch.Tensor,
    ple: torch.Tensor | None,
    hidden_size: int,
    eps: float = 1e-6,
    *,
    rounding: Rounding = Rounding.FP32,
    out: torch.Tensor | None = None,
    path: Path = "auto",
) -> torch.Tensor:
    """Return (rms(projection * hidden_size^-0.5) * weight + ple) * 2^-0.5; without ple the norm alone.

    Args:
        projection: [T, L, P] bf16, fp16 or fp32, T >= 0, T * L below 2^31; any strides, the last one 1.
        weight: [P] bf16, fp16 or fp32, contiguous.
        ple: as projection, the scaled embedding of the tokens; None if there are no token ids for it.
        hidden_size: H of the model.
        eps: of the norm.
        rounding: where values are rounded, see Rounding.
        path: which implementation to run; "auto" for the one that this device takes.
        out: as projection; new and contiguous if None. May be projection or ple itself; any other overlap is undefined.

    Returns:
        [T, L, P] in projection's dtype.

    Raises:
        ValueError: a shape, dtype, device or stride that is not as above, or a path that this device cannot run.
    """
    eager = rounding is Rounding.EAGER
    embedding = projection if ple is None else ple
    key = None
    if out is None and path == "auto":
        key = (*facts(projection, weight, embedding), ple is None, hidden_size, eps, type(eps), eager)
        if (known := _KNOWN.get(key)) is not None:
            out = new_like(projection)
            if known.again((projection, weight, embedding, out)):
                return out
    _refuse(projection, weight, ple, hidden_size)
    if out is None:
        out = new_like(projection)
    else:
        _refuse_unlike("out", out, projection)
    tokens, layers, width = projection.shape
    pairs, factor = tokens * layers, hidden_size**-0.5
    if pairs == 0:
        return out
    if not takes_kernel(projection, path):
        return out.copy_(reference.ple_front_end(projection, weight, ple, factor, eps, rounding))
    plan = plan_tiles(width, pairs, 1024 if pairs < _MANY_PAIRS else 4096)
    launch = _launcher().launch(
        -(-pairs // plan.tile),
        (projection, weight, embedding, out),
        (*projection.stride()[:2], *embedding.stride()[:2], *out.stride()[:2]),
        (pairs, factor, eps),
        (layers, width, plan.block, plan.tile, ple is not None, eager),
        num_warps=plan.num_warps,
        fuse=not eager,
        early=plan.tile == 1,
    )
    if key is not None:
        _KNOWN.keep(key, launch)
    return out


def _refuse(projection: torch.Tensor, weight: torch.Tensor, ple: torch.Tensor | None, hidden_size: int) -> None:
    if projection.dim() != 3 or not 1 <= projection.shape[2] <= MAX_WIDTH or projection.dtype not in DTYPES:
        what = f"{list(projection.shape)} {projection.dtype}"
        raise ValueError(f"projection is {what}, expected [T, L, 1..{MAX_WIDTH}] bfloat16, float16 or float32")
    if projection.shape[0] * projection.shape[1] > _MAX_PAIRS:
        raise ValueError(f"projection has {projection.shape[0] * projection.shape[1]} rows, expected below 2^31")
    _refuse_unlike("projection", projection, projection)
    if ple is not None:
        _refuse_unlike("ple", ple, projection)
    if weight.shape != projection.shape[2:] or weight.dtype not in DTYPES or weight.device != projection.device:
        what = f"{list(weight.shape)} {weight.dtype} on {weight.device}"
        raise ValueError(f"weight is {what}, expected floating [{projection.shape[2]}] on {projection.device}")
    if not weight.is_contiguous():
        raise ValueError(f"weight has stride {weight.stride(0)}, expected contiguous")
    if hidden_size < 1:
        raise ValueError(f"hidden_size is {hidden_size}, expected 1 or more")


def _refuse_unlike(name: str, tensor: torch.Tensor, first: torch.Tensor) -> None:
    if tensor.shape != first.shape or tensor.dtype != first.dtype or tensor.device != first.device:
        have, want = (f"{list(t.shape)} {t.dtype} on {t.device}" for t in (tensor, first))
        raise ValueError(f"{name} is {have}, expected {want}")
    if tensor.stride(2) != 1 and tensor.shape[2] > 1:
        raise ValueError(f"{name} has stride {tensor.stride(2)} inside a row, expected 1")


@functools.cache
def _launcher() -> Launcher:
    # Here: the torch path, which a CPU takes, needs no Triton.
    from gemma4_kernels.ple_front_end.kernel import ple_front_end_kernel

    return Launcher(ple_front_end_kernel)
