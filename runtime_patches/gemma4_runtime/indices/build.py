"""The record of one metadata build, the same for every attention backend.

| noun       | what it is                                                                                        |
|------------|---------------------------------------------------------------------------------------------------|
| IndexArray | page ids or token slots that kernels will follow, and the pool whose ids they are                  |
| Use        | one kind of layers that follows one array into one buffer                                          |
| Build      | all arrays and uses of one metadata build, with what a report about it needs                       |
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

# A draft that has a pool of its own shares the target's allocator, so full-pool ids are its buffer's ids too.
_BELONG = {("full", "full"), ("swa", "swa"), ("full", "draft"), ("draft", "draft")}


@dataclass(frozen=True)
class IndexArray:
    """values: page ids [rows, columns] if `paged`, else token slots [rows, per row], or [any] with `indptr` [> rows].

    space: the pool whose ids the backend means these to be. origin: the attribute that holds them. may_be_null: a slot
    of the null page may stand in any row, not in padded rows only; for slots.
    """

    name: str
    values: torch.Tensor
    space: str
    origin: str
    paged: bool = True
    indptr: torch.Tensor | None = None
    may_be_null: bool = False


@dataclass(frozen=True)
class Use:
    """Layers that follow `array` into one buffer. buffer_space None: the pool in force has no such layer.

    bound: ids must be below it; pages of the buffer for page ids, slots for slots. layer_id: the first such layer.
    window_left: as the kernel gets it, -1 for full attention.
    """

    array: str
    buffer_space: str | None
    bound: int
    layer_id: int | None
    window_left: int = -1
    writes: bool = False

    def belongs(self, array: IndexArray) -> bool:
        """Say whether the ids are ids of the buffer's own pool."""
        return (array.space, self.buffer_space) in _BELONG


@dataclass(frozen=True)
class Build:
    """cache_seqlens, request_slots: [rows]. window_keys: keys before the last one that a sliding row still needs, -1 if
    a null page may stand anywhere. rows_per_request: above 1 where a draft expands its rows for top-k.
    """

    backend: Any
    backend_name: str
    role: str | None
    site: str
    forward_mode: str
    bucket: int | None
    page_size: int
    arrays: tuple[IndexArray, ...]
    uses: tuple[Use, ...]
    pool: Any
    cache_seqlens: torch.Tensor
    request_slots: torch.Tensor
    query_tokens: int
    window_keys: int = -1
    rows_per_request: int = 1

    @property
    def in_graph(self) -> bool:
        return self.bucket is not None

    @property
    def rows(self) -> int:
        return self.request_slots.shape[0]

    def array(self, name: str) -> IndexArray:
        return next(array for array in self.arrays if array.name == name)

    def uses_of(self, name: str) -> tuple[Use, ...]:
        return tuple(use for use in self.uses if use.array == name)

    def bound_of(self, name: str) -> int:
        """Say what ids of an array must be below: the smallest of its buffers' bounds, 0 if no layer follows it."""
        return min((use.bound for use in self.uses_of(name) if use.buffer_space is not None), default=0)

    def wrong_uses(self) -> tuple[Use, ...]:
        """Uses whose ids belong to another pool than their buffer."""
        return tuple(use for use in self.uses if not use.belongs(self.array(use.array)))
