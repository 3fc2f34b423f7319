"""Launch cross_layer_norm: on CUDA one kernel without synchronisation, elsewhere torch."""

from __future__ import annotations

import functools
from typing import NamedTuple

import torch

from gemma4_kernels.cross_layer_norm import reference
from gemma4_kernels.cross_layer_norm.boundary import Boundary, NextNorm, boundary_after, needs_own_input_norm
from gemma4_kernels.launcher import KnownLaunches, Launcher, facts
from gemma4_kernels.rounding import Rounding
from gemma4_kernels.row_arguments import (
    Path,
    new_like,
    output_like,
    refuse_rows,
    refuse_scalar,
    refuse_unlike,
    refuse_weight,
    takes_kernel,
)
from gemma4_kernels.row_plan import EARLY_BELOW, plan_rows

__all__ = [
    "Boundary",
    "CrossLayer",
    "NextNorm",
    "boundary_after",
    "cross_layer_norm",
    "moe_cross_layer_norm",
    "needs_own_input_norm",
]

_KNOWN = KnownLaunches()


class CrossLayer(NamedTuple):
    """hidden: [rows, H], None if it was not asked for. normed: [rows, H], None without a norm that follows."""

    hidden: torch.Tensor | None
    normed: torch.Tensor | None


def cross_layer_norm(
    x: torch.Tensor,
    weight: torch.Tensor,
    residual: torch.Tensor,
    scalar: torch.Tensor,
    next_weight: torch.Tensor | None,
    eps: float = 1e-6,
    *,
    with_hidden: bool = True,
    row_ids: torch.Tensor | None = None,
    rounding: Rounding = Rounding.FP32,
    out: CrossLayer | None = None,
    path: Path = "auto",
) -> CrossLayer:
    """Return hidden = (rms(x) * weight + residual) * scalar, and rms(hidden) * next_weight.

    The tail of a layer without experts. Where per-layer embeddings end a layer, x is their projection.

    Args:
        x: [T, H] bf16, fp16 or fp32, T >= 0; rows any distance apart, unit stride inside a row.
        weight: [H] bf16, fp16 or fp32, contiguous.
        residual: as x.
        scalar: one element, bf16, fp16 or fp32, on the device.
        next_weight: as weight; None: hidden only.
        eps: of the norms.
        with_hidden: False if nobody reads hidden: it is then not stored.
        row_ids: [B] int64, contiguous, each 0..T-1: compute these rows only, in this order. Not checked, which would
            take a synchronisation. None: all rows.
        rounding: where values are rounded, see Rounding.
        path: which implementation to run; "auto" for the one that this device takes.
        out: where to store, [rows, H] each; a new tensor for None. Without row_ids they may be x and residual
            themselves, in either order; any other overlap is undefined.

    Raises:
        ValueError: a shape, dtype, device or stride that is not as above; neither hidden nor normed asked for; a path
            that this device cannot run.
    """
    return _run(((x, weight),), weight, residual, scalar, next_weight, eps, with_hidden, row_ids, rounding, out, path)


def moe_cross_layer_norm(
    dense: torch.Tensor,
    dense_weight: torch.Tensor,
    experts: torch.Tensor,
    experts_weight: torch.Tensor,
    weight: torch.Tensor,
    residual: torch.Tensor,
    scalar: torch.Tensor,
    next_weight: torch.Tensor | None,
    eps: float = 1e-6,
    *,
    with_hidden: bool = True,
    row_ids: torch.Tensor | None = None,
    rounding: Rounding = Rounding.FP32,
    out: CrossLayer | None = None,
    path: Path = "auto",
) -> CrossLayer:
    """Return what `cross_layer_norm` does, with x = rms(dense) * dense_weight + rms(experts) * experts_weight.

    The tail of a layer with experts. Of these, dense and experts are as x there, and their weights as weight.
    """
    branches = ((dense, dense_weight), (experts, experts_weight))
    return _run(branches, weight, residual, scalar, next_weight, eps, with_hidden, row_ids, rounding, out, path)


def _run(
    branches: tuple[reference.Branch, ...],
    weight: torch.Tensor,
    residual: torch.Tensor,
    scalar: torch.Tensor,
    next_weight: torch.Tensor | None,
    eps: float,
    with_hidden: bool,
    row_ids: torch.Tensor | None,
    rounding: Rounding,
    out: CrossLayer | None,
    path: Path,
) -> CrossLayer:
    eager = rounding is Rounding.EAGER
    (first, first_weight), (second, second_weight) = branches[0], branches[-1]
    key = None
    if out is None and path == "auto":
        optional = [residual if tensor is None else tensor for tensor in (next_weight, row_ids)]
        inputs = first, first_weight, second, second_weight, weight, residual, scalar, *optional
        asked = len(branches), next_weight is None, row_ids is None, with_hidden
        key = (*facts(*inputs), asked, eps, type(eps), eager)
        if (known := _KNOWN.get(key)) is not None:
            like = residual if row_ids is None else residual[:1].expand(row_ids.shape[0], -1)
            hidden = new_like(like) if with_hidden else None
            normed = None if next_weight is None else new_like(like)
            out = CrossLayer(hidden, normed)
            if known.again((*inputs, *[residual if tensor is None else tensor for tensor in out])):
                return out
    _refuse(branches, weight, residual, scalar, next_weight, with_hidden, row_ids)
    # Only the shape and dtype of it count: the outputs have as many rows as there are ids.
    like = residual if row_ids is None else residual[:1].expand(row_ids.shape[0], -1)
    hidden = output_like("hidden", out and out.hidden, like) if with_hidden else None
    normed = output_like("normed", out and out.normed, like) if next_weight is not None else None
    rows, width = like.shape
    if rows == 0:
        return CrossLayer(hidden, normed)
    if not takes_kernel(residual, path):
        made = reference.cross_layer_norm(branches, weight, residual, scalar, next_weight, eps, rounding, row_ids)
        for output, result in zip((hidden, normed), made, strict=True):
            if output is not None and result is not None:
                output.copy_(result)
        return CrossLayer(hidden, normed)
    plan = plan_rows(width, rows)
    # What the kernel was compiled not to touch is some tensor of the right dtype.
    tensors = (next_weight, row_ids, hidden, normed)
    optional = [residual if tensor is None else tensor for tensor in tensors]
    launch = _launcher().launch(
        rows,
        (first, first_weight, second, second_weight, weight, residual, scalar, *optional),
        (first.stride(0), second.stride(0), residual.stride(0), optional[2].stride(0), optional[3].stride(0)),
        (eps,),
        (
            width,
            plan.block,
            len(branches) == 2,
            row_ids is not None,
            hidden is not None,
            normed is not None,
            rows < EARLY_BELOW,
            eager,
        ),
        num_warps=plan.num_warps,
        fuse=not eager,
        early=rows < EARLY_BELOW,
    )
    if key is not None:
        _KNOWN.keep(key, launch)
    return CrossLayer(hidden, normed)


def _refuse(
    branches: tuple[reference.Branch, ...],
    weight: torch.Tensor,
    residual: torch.Tensor,
    scalar: torch.Tensor,
    next_weight: torch.Tensor | None,
    with_hidden: bool,
    row_ids: torch.Tensor | None,
) -> None:
    refuse_rows("residual", residual)
    for rows, branch_weight in branches:
        refuse_unlike("a branch", rows, residual)
        refuse_weight("a branch's weight", branch_weight, residual)
    refuse_weight("weight", weight, residual)
    refuse_scalar("scalar", scalar, residual)
    if next_weight is not None:
        refuse_weight("next_weight", next_weight, residual)
    elif not with_hidden:
        raise ValueError("neither hidden nor a next_weight: there is nothing to compute")
    if row_ids is not None:
        if row_ids.dim() != 1 or row_ids.dtype != torch.int64 or row_ids.device != residual.device:
            what = f"{list(row_ids.shape)} {row_ids.dtype} on {row_ids.device}"
            raise ValueError(f"row_ids is {what}, expected [rows] int64 on {residual.device}")
        if not row_ids.is_contiguous():
            raise ValueError(f"row_ids has stride {row_ids.stride(0)}, expected contiguous")
        if row_ids.shape[0] and not residual.shape[0]:
            raise ValueError(f"row_ids has {row_ids.shape[0]} rows of none")


@functools.cache
def _launcher() -> Launcher:
    # Here: the torch path, which a CPU takes, needs no Triton.
    from gemma4_kernels.cross_layer_norm.kernel import cross_layer_norm_kernel

    return Launcher(cross_layer_norm_kernel)
