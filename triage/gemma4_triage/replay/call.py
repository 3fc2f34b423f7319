"""One attention call over a paged KV cache, as a dump tells it.

| noun     | what it is                                                                                  |
|----------|---------------------------------------------------------------------------------------------|
| entry    | a page id of a page table, or a token slot of a slot list                                    |
| unit     | keys that one entry stands for: the page size, or 1                                          |
| live     | entries that the row's keys need; what follows them is stale                                 |
| read     | live entries that hold a key which a replayed query sees: a window hides the others          |
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from gemma4_triage.replay.geometry import Geometry

UNKNOWN = np.iinfo(np.int64).min
"""Stands where the dump holds no entry."""

MAX_QUERIES_PER_ROW = 16


@dataclass(frozen=True)
class AttentionCall:
    """A call of attention. Arrays are int64 unless said otherwise; everything about entries is [rows, columns].

    Attributes:
        ids: as the kernel would have met them: what containment replaced is put back as far as the dump knows.
        translated: what they should have been, or None.
        listed: bool, the probe named this entry.
        key_counts, query_counts, request_slots: [rows]; slot -1 if unknown, 0 in padded rows.
        bound: exclusive, in entries.
        foreign: the ids are another pool's than the buffer's.
        notes: what a reader of the result has to know.
        columns: which of the table's columns these are, ascending; None: all from the first.
    """

    dump_id: str
    table: str
    paged: bool
    bound: int
    ids: np.ndarray
    translated: np.ndarray | None
    listed: np.ndarray
    key_counts: np.ndarray
    query_counts: np.ndarray
    request_slots: np.ndarray
    table_space: str
    buffer_space: str
    foreign: bool
    geometry: Geometry
    notes: tuple[str, ...] = ()
    columns: np.ndarray | None = None

    @property
    def rows(self) -> int:
        return self.ids.shape[0]

    @property
    def unit(self) -> int:
        return self.geometry.page_size if self.paged else 1

    @property
    def window_left(self) -> int:
        """-1 for a slot list: it holds what its queries see, no more."""
        return self.geometry.window_left if self.paged else -1

    @cached_property
    def first_keys(self) -> np.ndarray:
        """[rows]: the first key that the row's first query sees."""
        if self.window_left < 0:
            return np.zeros_like(self.key_counts)
        return np.maximum(self.key_counts - self.query_counts - self.window_left, 0)

    @cached_property
    def live(self) -> np.ndarray:
        return self._begins < self.key_counts[:, None]

    @cached_property
    def read(self) -> np.ndarray:
        return self.live & (self._begins + self.unit > self.first_keys[:, None])

    @cached_property
    def queries(self) -> tuple[np.ndarray, np.ndarray]:
        """Row and position of each replayed query, both [queries]: spread evenly over a row's where there are many."""
        rows, positions = [], []
        for row, (keys, count) in enumerate(zip(self.key_counts.tolist(), self.query_counts.tolist(), strict=True)):
            spread = np.linspace(keys - count, keys - 1, min(count, MAX_QUERIES_PER_ROW))
            found = np.unique(np.round(spread).astype(np.int64))
            rows.append(np.full(found.shape, row, np.int64))
            positions.append(found)
        return np.concatenate([*rows, np.zeros(0, np.int64)]), np.concatenate([*positions, np.zeros(0, np.int64)])

    @property
    def _begins(self) -> np.ndarray:
        """[1, columns]: position of the first key of each column."""
        columns = np.arange(self.ids.shape[1], dtype=np.int64) if self.columns is None else self.columns
        return (columns * self.unit)[None, :]
