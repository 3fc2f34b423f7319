"""Which soft tokens of a frame are real, worked out on the host from the positions of its patches.

SGLang asks the device for a boolean mask per frame and waits for the answer. The positions came from the processor and
are on the host, so nothing has to be asked.
"""

from __future__ import annotations

import torch
from torch import Tensor


def pooling_side(patches: int, length: int) -> int:
    """Return the side of a pooling cell, as `Gemma4VisionPooler` works it out from patches to soft tokens per frame."""
    return int((patches // length) ** 0.5)


def cell_of_patch(positions: Tensor, side: int) -> Tensor:
    """[F, P, 2] to [F, P] int64: into which soft token of its frame each patch goes; padding goes into the first."""
    clamped = positions.clamp(min=0)
    columns = (clamped[..., 0].amax(dim=-1, keepdim=True) + 1) // side
    cells = torch.div(clamped, side, rounding_mode="floor")
    return cells[..., 0] + columns * cells[..., 1]


def is_padding(positions: Tensor) -> Tensor:
    """[F, P, 2] to [F, P] bool."""
    return (positions == -1).all(dim=-1)


def rows_of_real(positions: Tensor, length: int) -> tuple[Tensor, list[int]]:
    """positions: [F, P, 2] on the host. Rows of [F * length, h] that hold soft tokens, and how many per frame."""
    cells = cell_of_patch(positions, pooling_side(positions.shape[1], length))
    real = torch.zeros(len(positions), length, dtype=torch.bool).scatter_(1, cells, True)
    return real.view(-1).nonzero().squeeze(1), real.sum(dim=1).tolist()
