"""What became of each page of one pool: a history in host arrays, folded from events in the order in which they came.

26 bytes per page; O(n log n) in the slots of an event, never in the pool.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np


class Site(IntEnum):
    """Who asked for an allocation or a release. Values are stored in dumps: append, never renumber."""

    UNKNOWN = 0
    ALLOC_FOR_EXTEND = 1
    ALLOC_FOR_DECODE = 2
    PREPARE_FOR_VERIFY = 3
    SPEC_V2_DECODE = 4
    VERIFY = 5
    CACHE_UNFINISHED_REQ = 6
    CACHE_FINISHED_REQ = 7
    RELEASE_KV_CACHE = 8
    EVICT_TREE = 9
    EVICT_SWA = 10
    REQ_TO_TOKEN_POOL = 11


class LastEvent(IntEnum):
    """The latest event of a page. Values are stored in dumps: append, never renumber."""

    NONE = 0
    HANDED_OUT = 1
    OWNED = 2
    FREE_ASKED = 3
    FREED = 4
    CLEARED = 5


NOBODY = -1
_FREE = (LastEvent.FREED, LastEvent.CLEARED)


class PageLedger:
    """The history of `pages` pages, numbered 1 to pages; row 0 stands for the dummy page and is never read.

    Pages that are not in `free_pages` at the start are in use by somebody from before: owner unknown.
    """

    def __init__(self, pages: int, page_size: int, free_pages: np.ndarray) -> None:
        rows = pages + 1
        self.pages, self.page_size = pages, page_size
        self.last_event = np.full(rows, LastEvent.NONE, np.int8)
        self.last_event[_inside(free_pages, rows)] = LastEvent.CLEARED
        self.owner = np.full(rows, NOBODY, np.int32)
        self.generation = np.zeros(rows, np.int32)
        self.alloc_site, self.free_site = np.zeros((2, rows), np.int8)
        self.alloc_step, self.free_step = np.full((2, rows), NOBODY, np.int32)
        self.peer = np.zeros(rows, np.int32)

    def pages_of(self, slots: np.ndarray) -> np.ndarray:
        """The distinct pages of `slots`, ascending; what lies outside the pool is left out."""
        return _inside(np.unique(slots // self.page_size), self.pages + 1)

    def hand_out(self, slots: np.ndarray, site: int, step: int) -> np.ndarray:
        """`slots` were handed out. Returns pages that this opened although they were in use.

        A slot at the beginning of its page opens it; any other one may continue a page that its request holds.
        """
        opened = self.pages_of(slots[slots % self.page_size == 0])
        overlapping = opened[~np.isin(self.last_event[opened], (*_FREE, LastEvent.NONE))]
        self.owner[opened] = NOBODY
        self.generation[opened] = 0
        self.peer[opened] = 0
        self.alloc_site[opened], self.alloc_step[opened] = site, step
        self.last_event[self.pages_of(slots)] = LastEvent.HANDED_OUT
        return overlapping

    def own(self, pages: np.ndarray, owners: np.ndarray, generations: np.ndarray) -> None:
        """Each of `pages` was written into the row of a request slot. All [n]; the last of a repeated page holds."""
        inside = (pages > 0) & (pages <= self.pages)
        pages = pages[inside]
        self.owner[pages], self.generation[pages] = owners[inside], generations[inside]
        self.last_event[pages] = LastEvent.OWNED

    def ask_free(self, slots: np.ndarray, site: int, step: int) -> None:
        """`slots` were handed in while a free group was open; the group's end will release them."""
        self._freed(self.pages_of(slots), site, step, LastEvent.FREE_ASKED)

    def free(self, slots: np.ndarray, site: int, step: int) -> np.ndarray:
        """`slots` were released. Returns pages that were free already; at page size 1 also those named twice.

        Above page size 1 SGLang frees a page once, however many of its slots a call names.
        """
        if self.page_size == 1:
            pages, counts = np.unique(slots, return_counts=True)
            repeated = _inside(pages[counts > 1], self.pages + 1)
        else:
            repeated = np.empty(0, np.int64)
        pages = self.pages_of(slots)
        again = np.union1d(repeated, pages[np.isin(self.last_event[pages], _FREE)])
        asked = self.last_event[pages] == LastEvent.FREE_ASKED
        self._freed(pages[~asked], site, step, LastEvent.FREED)
        self.last_event[pages] = LastEvent.FREED
        return again

    def clear(self, step: int) -> None:
        """The allocator was cleared: every page is free, and whose it was is past."""
        self.owner[:], self.generation[:], self.peer[:] = NOBODY, 0, 0
        self._freed(np.arange(self.pages + 1), Site.UNKNOWN, step, LastEvent.CLEARED)

    def _freed(self, pages: np.ndarray, site: int, step: int, event: LastEvent) -> None:
        self.free_site[pages], self.free_step[pages] = site, step
        self.last_event[pages] = event


def _inside(pages: np.ndarray, rows: int) -> np.ndarray:
    return pages[(pages > 0) & (pages < rows)]
