"""The record of one metadata build, the same for every attention backend: arrays of ids, and who follows them where."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

# A draft that has a pool of its own shares the target's allocator, so full-pool ids are its buffer's ids too.
_BELONG = {("full", "full"), ("swa", "swa"), ("full", "draft"), ("draft", "draft")}


@dataclass(frozen=True)
class IndexArray:
    """Ids that kernels will follow.

    Attributes:
        name: The array's name in dumps.
        values: Page ids [rows, columns] if `paged`, else token slots [rows, per row], or [any] with `indptr`.
        space: The pool whose ids the backend means these to be.
        origin: The attribute that holds them.
        paged: Whether these are page ids.
        indptr: Where each row begins, [more than rows].
        may_be_null: Whether a slot of the null page may stand in any row, not in padded rows only.
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
    """Layers that follow one array into one buffer.

    Attributes:
        array: Name of the array.
        buffer_space: Whose buffer it is; None: the pool in force has no such layer.
        bound: Ids must be below it; pages of the buffer for page ids, slots for slots.
        layer_id: The first such layer.
        window_left: As the kernel gets it, -1 for full attention.
        writes: Whether it is written, not read.
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
    """All arrays and uses of one metadata build, with what a report about it needs.

    Attributes:
        backend: The backend whose build it is.
        backend_name: Its name in dumps.
        role: Whose forward it serves: "target" or "draft".
        site: The function of SGLang's that built it.
        forward_mode: Name of the forward's mode.
        bucket: Rows of the CUDA graph that will read it; None if none will.
        page_size: Tokens of a page.
        arrays: What kernels will follow.
        uses: Which layers follow which array.
        pool: The KV pool in force.
        cache_seqlens: Keys of each row as the kernels are told, [rows].
        request_slots: Request slot of each row, [rows].
        query_tokens: Queries of a row.
        window_keys: Keys before the last one that a sliding row still needs, -1 if a null page may stand anywhere.
        rows_per_request: Above 1 where a draft expands its rows for top-k.
        believed_lengths: What `cache_seqlens` has to be, by the batch, [rows]; None where that is not told.
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
    believed_lengths: torch.Tensor | None = None

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
