"""What became of each page of one pool: a history in host arrays, folded from events in the order in which they came.

Of each page the LIVES latest lives that are over are kept as well, in a ring: whose it was, who handed it out and who
took it back, and when; and of the latest SHARES requests that took it from the prefix cache, which and when. 214 bytes
per page. A fold is O(n log n) in the pages that its rows name, never in the pool, and costs the same few numpy calls
for one event as for hundreds. Rows that a batch repeats as it decodes are left out before (`page_events.telling`).
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
    GIVEN = 6


LIVES = 4
"""How many lives of a page that are over are kept."""
LIFE_COLUMNS = ("owner_slot", "owner_generation", "alloc_site", "alloc_step", "free_site", "free_step", "given_step")
"""What is kept of a life, from the hand-out of a page until the next one. -1 for what did not happen."""

SHARES = 4
"""How many requests that took a page from the prefix cache are kept."""
SHARE_COLUMNS = ("request_slot", "request_generation", "site", "step")
"""What is kept of each: who took the page, asked by whom, and when."""

_INSERTING = (Site.CACHE_UNFINISHED_REQ, Site.CACHE_FINISHED_REQ)
_BESIDE = (Kind.PAIRED, Kind.SHARED)
"""Kinds that leave a page whose it was."""
_BECOMES = np.array([0 if kind in _BESIDE else LastEvent[kind.name] for kind in Kind], np.int8)
_IS_FREE = np.isin(np.arange(len(LastEvent)), (LastEvent.FREED, LastEvent.CLEARED))
_IN_USE = ~_IS_FREE & (np.arange(len(LastEvent)) != LastEvent.NONE)


@dataclass(frozen=True)
class Folded:
    """What a fold found, beside the history.

    Attributes:
        event: Of each page that was handed out while in use or freed while free, by event, then page.
        page: Of these events.
        owned: The rows of the PEER pool that the OWNED rows stand for, in order: what an owner holds here it holds
            there.
        strangers: (event, page), in order, of each page that a request gave back while another one owned it.
    """

    event: np.ndarray
    page: np.ndarray
    owned: PageRows
    strangers: tuple[tuple[int, int], ...] = ()


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
        self.given_step = np.full(rows, NOBODY, np.int32)
        self.peer = np.zeros(rows, np.int32)
        self.lives = np.full((rows, LIVES, len(LIFE_COLUMNS)), NOBODY, np.int32)
        self.ended = np.zeros(rows, np.int32)
        self.shares = np.full((rows, SHARES, len(SHARE_COLUMNS)), NOBODY, np.int32)
        self.shared = np.zeros(rows, np.int32)

    def lives_of(self, page: int) -> np.ndarray:
        """Return the lives of a page that are over and the present one, oldest first: int64 [lives, LIFE_COLUMNS]."""
        count = int(self.ended[page])
        past = [self.lives[page, number % LIVES] for number in range(max(0, count - LIVES), count)]
        freed = bool(_IS_FREE[self.last_event[page]] | (self.last_event[page] == LastEvent.FREE_ASKED))
        free = (int(self.free_site[page]), int(self.free_step[page])) if freed else (NOBODY, NOBODY)
        now = (self.owner[page], self.generation[page], self.alloc_site[page], self.alloc_step[page], *free)
        lived = self.alloc_step[page] != NOBODY and self.last_event[page] != LastEvent.CLEARED
        here = [(*now, self.given_step[page])] if lived else []
        return np.array([*past, *here], np.int64).reshape(-1, len(LIFE_COLUMNS))

    def shares_of(self, page: int) -> np.ndarray:
        """Return the latest that took a page from the prefix cache, oldest first: int64 [shares, SHARE_COLUMNS]."""
        count = int(self.shared[page])
        numbers = [number % SHARES for number in range(max(0, count - SHARES), count)]
        return self.shares[page, numbers].astype(np.int64)

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

        shares = np.flatnonzero(real & (kind == Kind.SHARED))
        if shares.size:
            self._share(rows, number[shares], site, step)
        acts = real & (kind != Kind.PAIRED) & (kind != Kind.SHARED)
        was = self.last_event[page]
        latest = _latest_before(acts, first)
        was[latest >= 0] = _BECOMES[kind[latest[latest >= 0]]]

        freed, asked = acts & (kind == Kind.FREED), acts & (kind == Kind.FREE_ASKED)
        wrong = (opens & _IN_USE[was]) | (freed & _IS_FREE[was])
        if self.page_size == 1:
            # Above page size 1 SGLang frees a page once, however many of its slots a call names.
            wrong |= freed & again
        owned = self._peers(rows, number, first, opens)
        cached = self._cached(page, kind, opens, first)
        given = real & (kind == Kind.GIVEN) & ~cached
        back = (freed | asked) & (rows.owner[number] != NOBODY)
        back &= ~(cached & np.isin(site[event], _INSERTING))
        strangers = self._strangers(rows, number, first, opens, event, page, kind, back) if back.any() else ()
        gone = asked | (freed & (was != LastEvent.FREE_ASKED))
        if opens.any():
            self._end_lives(rows, number, first, opens, gone, given, was, site, step)

        self.last_event[page[acts]] = _BECOMES[kind[acts]]
        own = opens | (real & (kind == Kind.OWNED))
        self.owner[page[own]], self.generation[page[own]] = rows.owner[number[own]], rows.generation[number[own]]
        self.alloc_site[page[opens]], self.alloc_step[page[opens]] = site[event[opens]], step[event[opens]]
        self.free_site[page[gone]], self.free_step[page[gone]] = site[event[gone]], step[event[gone]]
        fresh = opens | given
        self.given_step[page[fresh]] = np.where(given[fresh], step[event[fresh]], NOBODY)

        found = np.flatnonzero(wrong)
        found = found[np.argsort(event[found], kind="stable")]
        return Folded(event[found], page[found], owned, strangers)

    def _cached(self, page: np.ndarray, kind: np.ndarray, opens: np.ndarray, first: np.ndarray) -> np.ndarray:
        """Return of each row whether the prefix cache was given its page before, in the life that it has: bool [n]."""
        latest = _latest_before(opens | (kind == Kind.GIVEN), first)
        return np.where(latest >= 0, kind[latest] == Kind.GIVEN, self.given_step[page] != NOBODY)

    def _strangers(
        self,
        rows: PageRows,
        number: np.ndarray,
        first: np.ndarray,
        opens: np.ndarray,
        event: np.ndarray,
        page: np.ndarray,
        kind: np.ndarray,
        back: np.ndarray,
    ) -> tuple[tuple[int, int], ...]:
        """Return (event, page) of each page that was given back by a request that is not its owner, `back` rows only.

        What the prefix cache was given it may give back as it takes in another request: new pages in place of old ones
        whose sliding window was evicted. So `back` leaves that out; the census sees a page that is still held. An owner
        that is not known, and one of an earlier generation of the same slot, is no stranger's: the latter has ended,
        and its page is a leak or the prefix cache's.
        """
        at = np.flatnonzero(back)
        latest = _latest_before(opens | (kind == Kind.OWNED), first)[at]
        had = np.where(latest >= 0, rows.owner[number[latest]], self.owner[page[at]])
        wrong = at[(had != NOBODY) & (had != rows.owner[number[at]]) & (page[at] > 0)]
        return tuple(sorted((int(event[one]), int(page[one])) for one in wrong))

    def _end_lives(
        self,
        rows: PageRows,
        number: np.ndarray,
        first: np.ndarray,
        opens: np.ndarray,
        gone: np.ndarray,
        given_now: np.ndarray,
        was: np.ndarray,
        site: np.ndarray,
        step: np.ndarray,
    ) -> None:
        """Put the life that each opening row ends into the ring of its page."""
        kind, page, event = rows.kind[number], rows.page[number], rows.event[number]
        at = np.flatnonzero(opens)
        pages = page[at]

        def before(marked: np.ndarray) -> np.ndarray:
            return _latest_before(marked, first)[at]

        owner, opened = before(opens | (kind == Kind.OWNED)), before(opens)
        freed, given = before(gone), before(given_now)
        life = np.full((at.size, len(LIFE_COLUMNS)), NOBODY, np.int64)
        life[:, 0] = np.where(owner >= 0, rows.owner[number[owner]], self.owner[pages])
        life[:, 1] = np.where(owner >= 0, rows.generation[number[owner]], self.generation[pages])
        for column, values, stored in ((2, site, self.alloc_site), (3, step, self.alloc_step)):
            life[:, column] = np.where(opened >= 0, values[event[opened]], stored[pages])
        over = was[at] == LastEvent.FREED
        for column, values, stored in ((4, site, self.free_site), (5, step, self.free_step)):
            life[:, column] = np.where(over, np.where(freed >= 0, values[event[freed]], stored[pages]), NOBODY)
        in_fold = np.where(given > opened, step[event[given]], NOBODY)
        life[:, 6] = np.where(opened >= 0, in_fold, np.where(given >= 0, step[event[given]], self.given_step[pages]))
        known = (life[:, 3] != NOBODY) & (was[at] != LastEvent.CLEARED)
        pages, life = pages[known], life[known]
        if not pages.size:
            return
        # Rows are by page, then event: a page's lives that end in this fold follow one another.
        self.lives[pages, (self.ended[pages] + _run(pages)) % LIVES] = life
        np.add.at(self.ended, pages, 1)

    def _share(self, rows: PageRows, taken: np.ndarray, site: np.ndarray, step: np.ndarray) -> None:
        """Put who took each page into its ring: of the rows `taken`, which lie by page, then event."""
        page, event = rows.page[taken], rows.event[taken]
        columns = (rows.owner[taken], rows.generation[taken], site[event], step[event])
        self.shares[page, (self.shared[page] + _run(page)) % SHARES] = np.stack(columns, axis=1)
        np.add.at(self.shared, page, 1)

    def clear(self, step: int) -> None:
        """Note that the allocator was cleared: every page is free, and whose it was is past."""
        self.owner[:], self.generation[:], self.peer[:] = NOBODY, 0, 0
        self.given_step[:], self.lives[:], self.ended[:] = NOBODY, NOBODY, 0
        self.shares[:], self.shared[:] = NOBODY, 0
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


def _run(pages: np.ndarray) -> np.ndarray:
    """Return which of its page's rows each one is, [n]; the pages ascend."""
    here = np.arange(pages.size)
    return here - np.maximum.accumulate(np.where(_changes(pages), here, 0))


def _latest_before(marked: np.ndarray, first: np.ndarray) -> np.ndarray:
    """Index of the latest marked row before each one, from row `first` on; -1 for none. [n] each."""
    latest = np.full(marked.size, -1)
    latest[1:] = np.maximum.accumulate(np.where(marked, np.arange(marked.size), -1))[:-1]
    return np.where(latest >= first, latest, -1)
