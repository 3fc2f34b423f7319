"""What became of each page of one pool: a history in host arrays, folded from events in the order in which they came.

26 bytes per page. A fold is O(n log n) in the pages that its events name, never in the pool, and costs the same few
numpy calls for one event as for hundreds.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from gemma4_runtime.checks.page_events import NOBODY, Kind, PageRows, inside


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


_BECOMES = np.array([LastEvent[kind.name] if kind is not Kind.PAIRED else 0 for kind in Kind], np.int8)
_IS_FREE = np.isin(np.arange(len(LastEvent)), (LastEvent.FREED, LastEvent.CLEARED))
_IN_USE = ~_IS_FREE & (np.arange(len(LastEvent)) != LastEvent.NONE)


@dataclass(frozen=True)
class Folded:
    """What a fold found, beside the history.

    event, page: of each page that was handed out while in use or freed while free, by event, then page.
    owned: the rows of the PEER pool that the OWNED rows stand for, in order: what an owner holds here it holds there.
    """

    event: np.ndarray
    page: np.ndarray
    owned: PageRows


class PageLedger:
    """The history of `pages` pages, numbered 1 to pages; row 0 stands for what is no page, and is never read.

    Pages that are not in `free_pages` at the start are in use by somebody from before: owner unknown.
    """

    def __init__(self, pages: int, page_size: int, free_pages: np.ndarray) -> None:
        rows = pages + 1
        self.pages, self.page_size = pages, page_size
        self.last_event = np.full(rows, LastEvent.NONE, np.int8)
        self.last_event[inside(free_pages, pages)] = LastEvent.CLEARED
        self.owner = np.full(rows, NOBODY, np.int32)
        self.generation = np.zeros(rows, np.int32)
        self.alloc_site, self.free_site = np.zeros((2, rows), np.int8)
        self.alloc_step, self.free_step = np.full((2, rows), NOBODY, np.int32)
        self.peer = np.zeros(rows, np.int32)

    def pages_of(self, slots: np.ndarray) -> np.ndarray:
        """Return the distinct pages of `slots`, ascending; what lies outside the pool is left out."""
        pages = np.unique(slots // self.page_size)
        return pages[(pages > 0) & (pages <= self.pages)]

    def fold(self, rows: PageRows, site: np.ndarray, step: np.ndarray) -> Folded:
        """Add what `rows` tell. site, step: of each event, indexed by `rows.event`.

        A HANDED_OUT page that its event opens starts a new life; any other one goes on under its owner. A page that
        was asked to be freed keeps that site and step when it is.
        """
        number, opens, again = _one_row_each(rows)
        event, kind, page = rows.event[number], rows.kind[number], rows.page[number]
        here = np.arange(number.size)
        first = np.maximum.accumulate(np.where(_changes(page), here, 0))
        real = page > 0
        opens &= real

        acts = real & (kind != Kind.PAIRED)
        was = self.last_event[page]
        latest = _latest_before(acts, first)
        was[latest >= 0] = _BECOMES[kind[latest[latest >= 0]]]

        freed, asked = acts & (kind == Kind.FREED), acts & (kind == Kind.FREE_ASKED)
        wrong = (opens & _IN_USE[was]) | (freed & _IS_FREE[was])
        if self.page_size == 1:
            # Above page size 1 SGLang frees a page once, however many of its slots a call names.
            wrong |= freed & again
        owned = self._peers(rows, number, first, opens)

        self.last_event[page[acts]] = _BECOMES[kind[acts]]
        own = opens | (real & (kind == Kind.OWNED))
        self.owner[page[own]], self.generation[page[own]] = rows.owner[number[own]], rows.generation[number[own]]
        self.alloc_site[page[opens]], self.alloc_step[page[opens]] = site[event[opens]], step[event[opens]]
        gone = asked | (freed & (was != LastEvent.FREE_ASKED))
        self.free_site[page[gone]], self.free_step[page[gone]] = site[event[gone]], step[event[gone]]

        found = np.flatnonzero(wrong)
        found = found[np.argsort(event[found], kind="stable")]
        return Folded(event[found], page[found], owned)

    def clear(self, step: int) -> None:
        """The allocator was cleared: every page is free, and whose it was is past."""
        self.owner[:], self.generation[:], self.peer[:] = NOBODY, 0, 0
        self.free_site[:], self.free_step[:], self.last_event[:] = Site.UNKNOWN, step, LastEvent.CLEARED

    def _peers(self, rows: PageRows, number: np.ndarray, first: np.ndarray, opens: np.ndarray) -> PageRows:
        """Write `peer` and return the OWNED rows with the peer that their page had at their time, in their order."""
        kind, page, peer = rows.kind[number], rows.page[number], rows.peer[number].astype(np.int32)
        writes = opens | (kind == Kind.PAIRED)
        at = np.flatnonzero(kind == Kind.OWNED)
        latest = _latest_before(writes, first)[at]
        had = np.where(latest >= 0, peer[latest], self.peer[page[at]])
        self.peer[page[writes]] = peer[writes]
        order = np.argsort(number[at])
        owned = number[at][order]
        return PageRows.owned(rows.event[owned], had[order], rows.owner[owned], rows.generation[owned])


def _one_row_each(rows: PageRows) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Number of a row, `opens`, `again`, [pages and events each]: by page, then event; of several rows the last."""
    count = rows.page.size
    bits = count.bit_length()
    order = np.sort((rows.page << bits) | np.arange(count)) & ((1 << bits) - 1)
    fresh = _changes(rows.page[order]) | _changes(rows.event[order])
    if fresh.all():
        return order, rows.opens[order], rows.again[order]
    start = np.flatnonzero(fresh)
    stop = np.append(start[1:], count)
    opens = np.logical_or.reduceat(rows.opens[order], start)
    again = np.logical_or.reduceat(rows.again[order], start) | (stop - start > 1)
    return order[stop - 1], opens, again


def _changes(values: np.ndarray) -> np.ndarray:
    """Bool [n]: another value than the one before; the first is."""
    changed = np.ones(values.size, bool)
    np.not_equal(values[1:], values[:-1], out=changed[1:])
    return changed


def _latest_before(marked: np.ndarray, first: np.ndarray) -> np.ndarray:
    """Index of the latest marked row before each one, from row `first` on; -1 for none. [n] each."""
    latest = np.full(marked.size, -1)
    latest[1:] = np.maximum.accumulate(np.where(marked, np.arange(marked.size), -1))[:-1]
    return np.where(latest >= first, latest, -1)
