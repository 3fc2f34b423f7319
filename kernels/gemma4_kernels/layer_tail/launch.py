"""Launch layer_tail: on CUDA one kernel without synchronisation (kernel.py), elsewhere torch."""

from __future__ import annotations

from typing import NamedTuple

import torch

from gemma4_kernels.cuda_source import unavailable
from gemma4_kernels.layer_tail import reference
from gemma4_kernels.layer_tail.spec import MAX_ROWS, TailPlan, TailWeights
from gemma4_kernels.row_arguments import DTYPES, Path, refuse_weight, takes_kernel

__all__ = ["Tail", "layer_tail", "readable"]


class Tail(NamedTuple):
    """What a layer leaves: hidden and normed [M, H]; projected [M, N], or None without a next projection."""

    hidden: torch.Tensor
    normed: torch.Tensor
    projected: torch.Tensor | None


def layer_tail(
    attended: torch.Tensor,
    residual: torch.Tensor,
    ple: torch.Tensor,
    weights: TailWeights,
    next_norm: torch.Tensor,
    next_projection: torch.Tensor | None,
    eps: float,
    plan: TailPlan | None = None,
    *,
    path: Path = "auto",
    early: bool = True,
) -> Tail:
    """Return what a layer makes of its attention, and the next layer's norm and projection of that, see spec.py.

    Args:
        attended: [M, A], M in 1..8: what attention leaves, ahead of its output projection.
        residual: [M, H]: what the layer was given.
        ple: [M, P]: this layer's per-layer input; rows any distance apart.
        weights: Of the layer.
        next_norm: [H]: of the norm behind the layer.
        next_projection: [N, H]: what that is multiplied by; or None.
        eps: Of all norms.
        plan: How the weights are streamed, which the kernel needs.
        path: The kernel or torch; see `takes_kernel`.
        early: Whether it may start before the kernel ahead has ended. Then no weight may be what that kernel writes.

    Returns:
        New contiguous tensors.

    Raises:
        ValueError: A shape, dtype, device or stride is not as above, or the kernel cannot read it (`readable`); or it
            has no plan, or this device cannot run it.
    """
    _refuse(attended, residual, ple, weights, next_norm, next_projection)
    if not takes_kernel(attended, path):
        made = reference.layer_tail(attended, residual, ple, weights, next_norm, next_projection, eps)
        return Tail(*made)
    if plan is None:
        raise ValueError("the kernel needs a plan")
    if reason := unavailable(attended.device):
        raise ValueError(f"the kernel cannot run here: {reason}")
    if not readable(attended, residual, weights, next_projection):
        raise ValueError("the kernel takes bf16 rows at multiples of 16 bytes, of widths in 32s")
    # Here: the torch path needs no driver.
    from gemma4_kernels.layer_tail.kernel import launch

    rows = attended.shape[0]
    hidden, normed = (
        torch.empty((rows, residual.shape[1]), dtype=attended.dtype, device=attended.device) for _ in "hn"
    )
    projected, following = None, ()
    if next_projection is not None:
        projected = torch.empty((rows, next_projection.shape[0]), dtype=attended.dtype, device=attended.device)
        following = (next_projection,)
    with torch.cuda.device(attended.device):
        launch(
            plan,
            (attended, residual, ple),
            weights.scalar,
            (*weights[:5], *following),
            (*weights[5:9], next_norm),
            (hidden, normed, projected),
            eps,
            early,
        )
    return Tail(hidden, normed, projected)


def readable(
    attended: torch.Tensor, residual: torch.Tensor, weights: TailWeights, next_projection: torch.Tensor | None
) -> bool:
    """Say whether the kernel can read these: bf16, rows at multiples of 16 bytes, and widths in whole blocks of 32."""
    following = () if next_projection is None else (next_projection,)
    matrices = (attended, residual, *weights[:5], *following)
    bits = 0
    for matrix in matrices:
        bits |= matrix.data_ptr() | 2 * matrix.stride(0)
    for norm in weights[5:9]:
        bits |= norm.data_ptr()
    widths = attended.shape[1] | residual.shape[1] | weights.down.shape[1] | weights.ple_projection.shape[1]
    columns = 0 if next_projection is None else next_projection.shape[0]
    return attended.dtype is torch.bfloat16 and not bits & 15 and not widths % 32 and columns % 2 == 0


def _refuse(
    attended: torch.Tensor,
    residual: torch.Tensor,
    ple: torch.Tensor,
    weights: TailWeights,
    next_norm: torch.Tensor,
    next_projection: torch.Tensor | None,
) -> None:
    for name, rows in (("attended", attended), ("residual", residual), ("ple", ple)):
        if rows.dim() != 2 or not 1 <= rows.shape[0] <= MAX_ROWS or rows.shape[0] != attended.shape[0]:
            raise ValueError(f"{name} is {list(rows.shape)}, expected [1..{MAX_ROWS}, 1 or more] of the same rows")
    if attended.dtype not in DTYPES:
        raise ValueError(f"attended is {attended.dtype}, expected bfloat16, float16 or float32")
    (_, inner), (_, hidden), (_, narrow) = attended.shape, residual.shape, ple.shape
    wide = weights.down.shape[-1]
    wanted = {
        "o": (hidden, inner),
        "gate_up": (2 * wide, hidden),
        "down": (hidden, wide),
        "ple_gate": (narrow, hidden),
        "ple_projection": (hidden, narrow),
    }
    matrices = {name: (getattr(weights, name), shape) for name, shape in wanted.items()}
    if next_projection is not None:
        matrices["next_projection"] = next_projection, (next_projection.shape[0], hidden)
    matrices |= {
        "residual": (residual, residual.shape),
        "ple": (ple, ple.shape),
        "attended": (attended, attended.shape),
    }
    for name, (matrix, shape) in matrices.items():
        if matrix.shape != shape:
            raise ValueError(f"{name} is {list(matrix.shape)}, expected {list(shape)}")
        if matrix.dtype != attended.dtype or matrix.device != attended.device:
            have, want = f"{matrix.dtype} on {matrix.device}", f"{attended.dtype} on {attended.device}"
            raise ValueError(f"{name} is {have}, expected {want}")
        if matrix.stride(1) != 1 and matrix.shape[1] > 1:
            raise ValueError(f"{name} has stride {matrix.stride(1)} inside a row, expected 1")
    norms = dict(zip(TailWeights._fields[5:9], weights[5:9], strict=True)) | {"next_norm": next_norm}
    for name, norm in norms.items():
        refuse_weight(name, norm, residual)
        if norm.dtype != attended.dtype:
            raise ValueError(f"{name} is {norm.dtype}, expected {attended.dtype}")
    scalar = weights.scalar
    if scalar.numel() != 1 or scalar.dtype != attended.dtype or scalar.device != attended.device:
        have = f"{list(scalar.shape)} {scalar.dtype} on {scalar.device}"
        raise ValueError(f"scalar is {have}, expected one element of {attended.dtype} on {attended.device}")
