"""Launch token_embeddings: on CUDA one kernel without synchronisation, elsewhere torch."""

from __future__ import annotations

import functools
from typing import NamedTuple

import torch

from gemma4_kernels.launcher import KnownLaunches, Launcher, facts
from gemma4_kernels.row_arguments import DTYPES, Path, takes_kernel
from gemma4_kernels.token_embeddings import reference
from gemma4_kernels.token_embeddings.spec import BLOCK

__all__ = ["Embedded", "token_embeddings"]

_KNOWN = KnownLaunches()


class Embedded(NamedTuple):
    """What one launch gives.

    Attributes:
        tokens: [T, H].
        per_layer: [T, L * P]; None without a per-layer embedding.
    """

    tokens: torch.Tensor
    per_layer: torch.Tensor | None


def token_embeddings(
    ids: torch.Tensor,
    table: torch.Tensor,
    factor: float,
    per_layer_table: torch.Tensor | None = None,
    per_layer_factor: float = 1.0,
    *,
    hidden_ids: tuple[int, int, int] = (0, 0, 0),
    pad: int = 0,
    path: Path = "auto",
) -> Embedded:
    """Return table[ids] * factor and per_layer_table[ids, as spec.py says] * per_layer_factor.

    Args:
        ids: [T] int32 or int64, contiguous, T >= 0.
        table: [V, H] bf16, fp16 or fp32; rows any distance apart, unit stride inside a row.
        factor: of its rows.
        per_layer_table: [W, L * P], else as table; None for tokens alone.
        per_layer_factor: of its rows.
        hidden_ids: in whose place the per-layer embedding shows pad; pad itself for those that there are not.
        pad: an id.
        path: which implementation to run; "auto" for the one that this device takes.

    Raises:
        ValueError: a shape, dtype, device or stride that is not as above, or a path that this device cannot run.
    """
    per_layer = table if per_layer_table is None else per_layer_table
    numbers = (*hidden_ids, pad, factor, per_layer_factor)
    key = None
    if path == "auto":
        key = (*facts(ids, table, per_layer), per_layer_table is None, *numbers)
        if (known := _KNOWN.get(key)) is not None:
            made = _new(ids, table, per_layer_table)
            if known.again(_pointers(ids, table, per_layer, made)):
                return made
    _refuse(ids, table, per_layer)
    if not takes_kernel(ids, path):
        rows = reference.token_rows(ids, table, factor)
        if per_layer_table is None:
            return Embedded(rows, None)
        shown = reference.per_layer_rows(ids, per_layer_table, per_layer_factor, hidden_ids, pad)
        return Embedded(rows, shown)
    made = _new(ids, table, per_layer_table)
    if ids.shape[0] == 0:
        return made
    widths = table.shape[1], 0 if per_layer_table is None else per_layer_table.shape[1]
    launch = _launcher().launch(
        ids.shape[0] * sum(-(-width // BLOCK) for width in widths),
        _pointers(ids, table, per_layer, made),
        (table.stride(0), per_layer.stride(0)),
        (table.shape[0], per_layer.shape[0], *hidden_ids, pad, float(factor), float(per_layer_factor)),
        (*widths, BLOCK),
        num_warps=4,
        fuse=False,
        early=True,
    )
    if key is not None:
        _KNOWN.keep(key, launch)
    return made


def _new(ids: torch.Tensor, table: torch.Tensor, per_layer_table: torch.Tensor | None) -> Embedded:
    rows = table.new_empty((ids.shape[0], table.shape[1]))
    if per_layer_table is None:
        return Embedded(rows, None)
    return Embedded(rows, per_layer_table.new_empty((ids.shape[0], per_layer_table.shape[1])))


def _pointers(
    ids: torch.Tensor, table: torch.Tensor, per_layer: torch.Tensor, made: Embedded
) -> tuple[torch.Tensor, ...]:
    return ids, table, per_layer, made.tokens, made.tokens if made.per_layer is None else made.per_layer


def _refuse(ids: torch.Tensor, table: torch.Tensor, per_layer: torch.Tensor) -> None:
    if ids.dim() != 1 or ids.dtype not in (torch.int32, torch.int64) or not ids.is_contiguous():
        raise ValueError(f"ids is {list(ids.shape)} {ids.dtype}, expected contiguous [T] int32 or int64")
    for name, one in (("table", table), ("per_layer_table", per_layer)):
        if one.dim() != 2 or 0 in one.shape or one.dtype not in DTYPES or one.dtype != table.dtype:
            what = f"{list(one.shape)} {one.dtype}"
            raise ValueError(f"{name} is {what}, expected [ids, width] bfloat16, float16 or float32, both tables alike")
        if one.device != ids.device:
            raise ValueError(f"{name} is on {one.device}, expected {ids.device}")
        if one.stride(1) != 1 and one.shape[1] > 1:
            raise ValueError(f"{name} has stride {one.stride(1)} inside a row, expected 1")


@functools.cache
def _launcher() -> Launcher:
    # Here: the torch path, which a CPU takes, needs no Triton.
    from gemma4_kernels.token_embeddings.kernel import token_embeddings_kernel

    return Launcher(token_embeddings_kernel)
