"""Where every page of a pool is: each must be in exactly one place. Pure; host arrays in, findings out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np


class Fault(IntEnum):
    """What is wrong with a page. Values are stored in dumps: append, never renumber."""

    NOWHERE = 1
    FREE_TWICE = 2
    FREE_AND_HELD = 3
    HELD_TWICE = 4
    OUT_OF_RANGE = 5
    LOCKED_AT_IDLE = 6
    UNMAPPED = 7
    STALE_MAPPING = 8
    FREED_AGAIN = 9
    HANDED_OUT_IN_USE = 10
    FREED_BY_OTHER = 11
    HELD_NULL = 12
    HELD_OUTSIDE = 13
    UNBALANCED = 14
    MAPPED_ELSEWHERE = 15
    MOVED_IN_TREE = 16
    MAPPED_BELOW_ZERO = 17
    TREE_BROKEN = 18


VERDICT_OF = {
    Fault.NOWHERE: "pool_leak",
    Fault.LOCKED_AT_IDLE: "pool_leak",
    Fault.FREE_TWICE: "double_free",
    Fault.FREED_AGAIN: "double_free",
    Fault.FREE_AND_HELD: "freed_in_use",
    Fault.HELD_TWICE: "pool_alias",
    Fault.HANDED_OUT_IN_USE: "alloc_overlap",
    Fault.FREED_BY_OTHER: "freed_in_use",
    Fault.OUT_OF_RANGE: "free_out_of_range",
    Fault.UNMAPPED: "null_page_live",
    Fault.STALE_MAPPING: "stale_mapping",
    Fault.HELD_NULL: "held_out_of_range",
    Fault.HELD_OUTSIDE: "held_out_of_range",
    Fault.UNBALANCED: "pool_unbalanced",
    Fault.MAPPED_ELSEWHERE: "mapping_differs",
    Fault.MOVED_IN_TREE: "node_differs",
    Fault.MAPPED_BELOW_ZERO: "mapping_negative",
    Fault.TREE_BROKEN: "tree_broken",
}
"""The dump's verdict for each fault."""


@dataclass(frozen=True)
class Whereabouts:
    """Where the pages of one pool are, as SGLang's own structures say. Page ids, [any] each.

    Attributes:
        free: free list and release list together.
        pending: handed in to an open free group.
        held: one array of distinct pages per holder (a tree node, a request's private row range, a session slot).
    """

    pool: str
    pages: int
    free: np.ndarray
    pending: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))
    held: Sequence[np.ndarray] = ()


@dataclass(frozen=True)
class Finding:
    """`pages` of `pool`, [n], all with the same fault; `places` [n]: in how many places each is."""

    fault: Fault
    pool: str
    pages: np.ndarray
    places: np.ndarray

    @property
    def verdict(self) -> str:
        return VERDICT_OF[self.fault]


def check_census(where: Whereabouts) -> Iterator[Finding]:
    """Findings of one pool, a leak first. A page has one fault at most, the first of these that applies."""
    rows = where.pages + 1
    listed = np.concatenate((where.free, where.pending)).astype(np.int64)
    strangers = np.unique(listed[(listed < 1) | (listed >= rows)])
    free = np.bincount(listed[(listed > 0) & (listed < rows)], minlength=rows)
    held_pages = np.concatenate([np.empty(0, np.int64), *where.held]).astype(np.int64)
    held = np.bincount(held_pages[(held_pages > 0) & (held_pages < rows)], minlength=rows)
    places = free + held
    # The dummy page is in no list; a one here keeps it out of every finding.
    places[0] = 1
    free[0] = held[0] = 0
    cases = (
        (Fault.NOWHERE, places == 0),
        (Fault.FREE_AND_HELD, (free > 0) & (held > 0)),
        (Fault.FREE_TWICE, free > 1),
        (Fault.HELD_TWICE, held > 1),
    )
    seen = np.zeros(rows, bool)
    for fault, bad in cases:
        pages = np.flatnonzero(bad & ~seen)
        seen |= bad
        if pages.size:
            yield Finding(fault, where.pool, pages, places[pages])
    if strangers.size:
        yield Finding(Fault.OUT_OF_RANGE, where.pool, strangers, np.ones_like(strangers))
    null = np.count_nonzero(held_pages == 0)
    if null:
        yield Finding(Fault.HELD_NULL, where.pool, np.array([0]), np.array([null]))
    outside = np.unique(held_pages[(held_pages < 0) | (held_pages >= rows)])
    if outside.size:
        yield Finding(Fault.HELD_OUTSIDE, where.pool, outside, np.ones_like(outside))
