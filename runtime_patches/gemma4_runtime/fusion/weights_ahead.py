"""Which weights are read behind a product, so that the L2 cache has them before they are asked for.

Between two products of a decode step stand kernels that hardly use the memory: norms, a rotation, the attention of a
few requests. A product of `small-m-linear` asks the cache, once its own weights are there, for the beginning of those
that are read behind these kernels. Nothing that is computed depends on it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from gemma4_kernels.small_m_linear.spec import Piece
from gemma4_runtime.current import switched_on
from gemma4_runtime.fusion.paths import PATHS

OP = "weights-ahead"


class Part(NamedTuple):
    """Bytes of a linear layer's weight, a multiple of a cache line each."""

    linear: Any
    first: int
    size: int


_BEHIND: dict[int, tuple[Part, ...]] = {}
"""By the address of the weight of the product ahead."""


def set_behind(linear: Any, behind: tuple[Part, ...]) -> None:
    """Say what the product of this linear layer has read ahead."""
    _BEHIND[linear.weight.data_ptr()] = behind


def pieces_behind(weight: torch.Tensor) -> tuple[Piece, ...]:
    """Return what a product with this weight has read ahead; nothing where nobody has planned it or it is off."""
    pieces = planned(weight) if switched_on(OP) else ()
    if not pieces:
        return ()
    if not all(_fits(piece, weight) for piece in pieces):
        PATHS.took(OP, "weights that are elsewhere or were replaced since the model was made")
        return ()
    PATHS.took(OP)
    return pieces


def planned(weight: torch.Tensor) -> tuple[Piece, ...]:
    """Return what `set_behind` has said of a product with this weight."""
    behind = _BEHIND.get(weight.data_ptr(), ())
    return tuple([Piece(part.linear.weight, part.first, part.size) for part in behind if part.size])


def _fits(piece: Piece, weight: torch.Tensor) -> bool:
    other, first, size = piece
    return other.device == weight.device and other.is_contiguous() and first + size <= other.nbytes
