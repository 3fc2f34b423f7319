"""Which entries are not what they should be, and which of those a kernel reads.

| kind         | the entry                                                                                  |
|--------------|--------------------------------------------------------------------------------------------|
| out_of_range | is at or above the buffer's end                                                             |
| negative     | is below zero                                                                               |
| missing      | lies beyond what the dump has of the table: the row needs more columns than there are       |
| null         | is the null page (or a slot of it) where a live key has to be                               |
| other_page   | is inside the buffer, and not the page that it should be                                    |
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from gemma4_triage.replay.call import UNKNOWN, AttentionCall


class Kind(IntEnum):
    """In order of harm, so that the worst of several is the largest."""

    RIGHT = 0
    OTHER_PAGE = 1
    NULL = 2
    MISSING = 3
    NEGATIVE = 4
    OUT_OF_RANGE = 5

    @property
    def word(self) -> str:
        return self.name.lower()


OUTSIDE = (Kind.MISSING, Kind.NEGATIVE, Kind.OUT_OF_RANGE)
"""What is read from outside the buffer, or by way of what is outside the table."""


@dataclass(frozen=True)
class RowDamage:
    """What one row reads that it should not.

    Attributes:
        columns: the first and the last that are read.
        counts: of read entries, by kind, RIGHT left out.
        outside: reads outside the buffer.
        hidden: bad entries in live columns that the window hides from all queries.
        first: column, entry and kind of the worst read entry, the first of its kind; entry None if it is not in the
            dump.
    """

    row: int
    request_slot: int
    keys: int
    columns: tuple[int, int]
    counts: Mapping[Kind, int]
    outside: int
    hidden: int
    first: tuple[int, int | None, Kind]


def kinds(call: AttentionCall) -> np.ndarray:
    """[rows, columns] int8 of Kind; entries that are not live are RIGHT, whatever they hold."""
    found = np.zeros(call.ids.shape, np.int8)
    known, ids = call.ids != UNKNOWN, call.ids
    inside = known & (ids >= 0) & (ids < call.bound)
    if call.translated is not None:
        right = (call.translated >= 0) & (call.translated < call.bound)
        found[inside & right & (call.translated != ids)] = Kind.OTHER_PAGE
    elif call.foreign:
        found[inside & ~is_null(call)] = Kind.OTHER_PAGE
    found[is_null(call) & _must_not_be_null(call)] = Kind.NULL
    found[~known] = Kind.MISSING
    found[known & (ids < 0)] = Kind.NEGATIVE
    found[known & (ids >= call.bound)] = Kind.OUT_OF_RANGE
    found[~call.live] = Kind.RIGHT
    return found


def row_damages(call: AttentionCall) -> list[RowDamage]:
    """Return the rows that have a bad entry, read or hidden, in order."""
    found = kinds(call)
    return [_of_row(call, found, row) for row in np.flatnonzero(found.any(axis=1)).tolist()]


def worst_read(call: AttentionCall) -> Kind:
    """Return the worst that a kernel reads; RIGHT if the call is as it should be."""
    return Kind(int(kinds(call)[call.read].max(initial=0)))


def is_null(call: AttentionCall) -> np.ndarray:
    """Return the null page, or a slot of it: the same in every pool."""
    return (call.ids >= 0) & (call.ids < (1 if call.paged else call.geometry.page_size))


def _must_not_be_null(call: AttentionCall) -> np.ndarray:
    """Return which entries must not be the null page.

    In a translated table the window leaves null pages behind; in padded rows all are.
    """
    if call.table_space == "swa":
        return call.listed
    return call.listed | (call.request_slots != 0)[:, None]


def _of_row(call: AttentionCall, found: np.ndarray, row: int) -> RowDamage:
    read, here = call.read[row], found[row]
    columns = np.flatnonzero(read)
    counts = {kind: count for kind in Kind if kind and (count := int((here[read] == kind).sum()))}
    hidden = int(np.count_nonzero(here[~read]))
    worst = max(counts, default=Kind(int(here.max())))
    column = int(np.flatnonzero((here == worst) & (read if counts else True))[0])
    entry = int(call.ids[row, column])
    return RowDamage(
        row=row,
        request_slot=int(call.request_slots[row]),
        keys=int(call.key_counts[row]),
        columns=(int(columns[0]), int(columns[-1])) if columns.size else (0, 0),
        counts=counts,
        outside=sum(counts.get(kind, 0) for kind in OUTSIDE),
        hidden=hidden,
        first=(column, None if entry == UNKNOWN else entry, worst),
    )
