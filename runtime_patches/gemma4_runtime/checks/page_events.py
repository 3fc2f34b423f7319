"""Events of the pools, many at a time, on the host: which lists of slots they name, and what that means for pages."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property

import numpy as np

NOBODY = -1
FULL, SWA = 0, 1
"""Numbers of the pools."""


class Kind(IntEnum):
    """What happened to a list of slots."""

    HANDED_OUT = 0
    OWNED = 1
    PAIRED = 2
    FREE_ASKED = 3
    FREED = 4
    CLEARED = 5
    GIVEN = 6
    """The prefix cache has them from now on, beside or instead of the request that they are of."""
    SHARED = 7
    """A request took them from the prefix cache, whose they stay."""


@dataclass(frozen=True)
class Owners:
    """Groups of owners; a group may serve many OWNED events, as one batch decodes for many steps.

    Attributes:
        counts: Requests of each group, [groups].
        requests: Request slots, group after group, [sum of counts].
        generations: Of these slots.
        lengths: An event's slots lie request after request, lengths[i] of them for requests[i].
    """

    counts: np.ndarray
    requests: np.ndarray
    generations: np.ndarray
    lengths: np.ndarray


@dataclass(frozen=True)
class Events:
    """Events in the order in which they came, int64 [events] each.

    Attributes:
        kind: A `Kind`.
        pool: Number of the pool.
        site: Who asked.
        step: The scheduler's.
        first: Number of the event's list of slots, -1 for CLEARED.
        second: For PAIRED, of the SWA slots that go with them; for OWNED, of the group of owners; for SHARED, of the
            group that has the request, as for FREED and FREE_ASKED where it is known; else -1.
        slots: int64, all lists one after the other; list i is slots[bounds[i] : bounds[i + 1]], of any events.
        bounds: By list.
        owners: Groups of them.
        page_size: Slots of a page.
    """

    kind: np.ndarray
    pool: np.ndarray
    site: np.ndarray
    step: np.ndarray
    first: np.ndarray
    second: np.ndarray
    slots: np.ndarray
    bounds: np.ndarray
    owners: Owners
    page_size: int

    def slots_of(self, event: int) -> np.ndarray:
        """[n]; none for CLEARED."""
        number = self.first[event]
        return self.slots[self.bounds[number] : self.bounds[number + 1]] if number >= 0 else self.slots[:0]

    def requests_of(self, event: int) -> np.ndarray:
        """Request slots of an OWNED event."""
        return self.owners.requests[slice(*self._requests_of[self.second[event]])]

    @cached_property
    def runs(self) -> Runs:
        return Runs.of(self.slots, self.bounds, self.page_size)

    @cached_property
    def whole(self) -> np.ndarray:
        """Bool [events]: not of two lists that do not fit, nor of owners whose lengths do not add up to the list."""
        sizes = np.append(np.diff(self.bounds), 0)
        fits = np.ones(self.kind.size, bool)
        paired, owned = np.flatnonzero(self.kind == Kind.PAIRED), np.flatnonzero(self.kind == Kind.OWNED)
        fits[paired] = sizes[self.first[paired]] == sizes[self.second[paired]]
        said = np.diff(self._tokens_until[self._requests_of], axis=1)[:, 0]
        fits[owned] = said[self.second[owned]] == sizes[self.first[owned]]
        return fits

    def owner_of(self, event: np.ndarray, position: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Owner and generation of the slots at `position` of their OWNED events' lists, [n] each."""
        token = self._tokens_until[self._requests_of[self.second[event], 0]] + position
        request = self._request_of_token[token]
        return self.owners.requests[request], self.owners.generations[request]

    def first_of(self, event: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the first owner of the events' groups and its generation, [n] each."""
        first = self._requests_of[self.second[event], 0]
        return self.owners.requests[first], self.owners.generations[first]

    @cached_property
    def _requests_of(self) -> np.ndarray:
        ends = np.cumsum(self.owners.counts)
        return np.stack((ends - self.owners.counts, ends), axis=1)

    @cached_property
    def _tokens_until(self) -> np.ndarray:
        return np.append(0, np.cumsum(np.maximum(self.owners.lengths, 0)))

    @cached_property
    def _request_of_token(self) -> np.ndarray:
        return np.repeat(np.arange(self.owners.lengths.size), np.maximum(self.owners.lengths, 0))


@dataclass(frozen=True)
class Runs:
    """Neighbours of a list that lie in one page, as one run, [runs] each; list i has bounds[i] to bounds[i + 1].

    Attributes:
        start: Of the run in `slots`.
        stop: Of the run in `slots`.
        page: Of its slots.
        opens: Whether it holds the page's first slot.
        bounds: By list.
    """

    start: np.ndarray
    stop: np.ndarray
    page: np.ndarray
    opens: np.ndarray
    bounds: np.ndarray

    @classmethod
    def of(cls, slots: np.ndarray, bounds: np.ndarray, page_size: int) -> Runs:
        pages = slots // page_size
        first = np.empty(slots.size, bool)
        np.not_equal(pages[1:], pages[:-1], out=first[1:])
        first[bounds[bounds < slots.size]] = True
        start = np.flatnonzero(first)
        opens = np.logical_or.reduceat(slots == pages * page_size, start) if start.size else np.empty(0, bool)
        stop = np.append(start[1:], slots.size)[: start.size]
        return cls(start, stop, pages[start], opens, np.searchsorted(start, bounds))

    def only(self, chosen: np.ndarray) -> Runs:
        """Return those of `chosen`, bool [runs]."""
        kept = np.append(0, np.cumsum(chosen))
        return Runs(self.start[chosen], self.stop[chosen], self.page[chosen], self.opens[chosen], kept[self.bounds])

    def of_lists(self, lists: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the runs of `lists`, one list after the other: which of the lists each is of, and its number."""
        began = self.bounds[lists]
        counts = self.bounds[lists + 1] - began
        which = np.repeat(np.arange(lists.size), counts)
        return which, np.arange(which.size) + np.repeat(began - np.cumsum(counts) + counts, counts)


@dataclass(frozen=True)
class PageRows:
    """What events did to the pages of one pool, one row per event and run, in order, [rows] each.

    Attributes:
        event: Its number.
        kind: A `Kind`.
        page: 0 for what lies outside the pool.
        opens: Whether it is HANDED_OUT from the page's first slot on.
        again: Whether the run names a slot and others of its page.
        owner: Of OWNED; of SHARED, who took it; of FREED and FREE_ASKED, who gave it back; else NOBODY.
        generation: Of the owner, else 0.
        peer: Of PAIRED, a page of the other pool.
    """

    event: np.ndarray
    kind: np.ndarray
    page: np.ndarray
    opens: np.ndarray
    again: np.ndarray
    owner: np.ndarray
    generation: np.ndarray
    peer: np.ndarray

    @classmethod
    def of(cls, events: Events, chosen: np.ndarray, pool: int, pages: int, runs: Runs | None = None) -> PageRows:
        """Rows of the events `chosen`, ascending, in a pool of `pages` pages. Of PAIRED the lists of that pool.

        Args:
            events: All of them.
            chosen: Their numbers.
            pool: Number of the pool.
            pages: How many it has.
            runs: Those that get rows, if not all.
        """
        runs, kinds = runs or events.runs, events.kind[chosen]
        lists = _lists(events, chosen, pool)
        which, run = runs.of_lists(lists)
        event, kind = chosen[which], kinds[which]
        # Of slots that share a page the last decides, as if they had been applied one by one.
        position = runs.stop[run] - 1 - events.bounds[lists[which]]
        owner, generation, peer = np.full(run.size, NOBODY), np.zeros(run.size, int), np.zeros(run.size, int)
        own, pair = np.flatnonzero(kind == Kind.OWNED), np.flatnonzero(kind == Kind.PAIRED)
        owner[own], generation[own] = events.owner_of(event[own], position[own])
        by_one = (kind == Kind.FREED) | (kind == Kind.FREE_ASKED) | (kind == Kind.SHARED)
        by = np.flatnonzero(by_one & (events.second[event] >= 0))
        owner[by], generation[by] = events.first_of(event[by])
        other = (events.first if pool == SWA else events.second)[event[pair]]
        peer[pair] = events.slots[events.bounds[other] + position[pair]] // events.page_size
        return cls(
            event,
            kind,
            inside(runs.page[run], pages),
            runs.opens[run] & (kind == Kind.HANDED_OUT),
            (runs.stop - runs.start)[run] > 1,
            owner,
            generation,
            peer,
        )

    @classmethod
    def owned(cls, event: np.ndarray, page: np.ndarray, owner: np.ndarray, generation: np.ndarray) -> PageRows:
        """Rows that give pages to owners, in order, [n] each."""
        no = np.zeros(event.size, bool)
        return cls(event, np.full(event.size, Kind.OWNED), page, no, no, owner, generation, np.zeros(event.size, int))

    def take(self, rows: np.ndarray) -> PageRows:
        return PageRows(*(column[rows] for column in vars(self).values()))

    def merged_with(self, other: PageRows) -> PageRows:
        """Return both, in the order of their events; of one event these rows first."""
        both = PageRows(*map(np.concatenate, zip(vars(self).values(), vars(other).values(), strict=True)))
        return both.take(np.argsort(both.event, kind="stable"))


def telling(events: Events, pages: int, swa_pages: int, peers: np.ndarray) -> Runs:
    """Return the runs of `events` without those that say again what became of their pages: most, where one decodes.

    A step that decodes hands out slots, pairs them with SWA slots, and writes them into rows: a block. A page's part of
    a block is left out if it has one owner and one peer in all blocks, an earlier one says so, and no other event comes
    in between.

    Args:
        events: None of them CLEARED.
        pages: Of the pool FULL.
        swa_pages: Of the pool SWA; 0 where there is none.
        peers: Of the pages of FULL before these events, [pages + 1].
    """
    runs, blocks, ever = events.runs, _Blocks.of(events, bool(swa_pages)), events.kind.size
    which, full, swa = blocks.runs
    page, owned = inside(runs.page[full], pages), blocks.owned[which]
    owner, generation = events.owner_of(owned, runs.stop[full] - 1 - events.bounds[blocks.full[which]])

    # The event that a repetition must come after, by page; `ever` where nothing is left out.
    after = np.empty(pages + 1, np.int64)
    after[page] = -1
    other = blocks.others(events)
    _note(after, events, other, FULL, pages, ever)
    opens, peer_opens = np.flatnonzero(runs.opens[full]), np.flatnonzero(runs.opens[swa])
    np.maximum.at(after, page[opens], blocks.handed[which[opens]])
    _note_several(after, page, (owner << 32) + generation, ever)
    latest = after[page]
    if swa_pages:
        peer, peer_after = inside(runs.page[swa], swa_pages), np.empty(swa_pages + 1, np.int64)
        peer_after[peer] = -1
        _note(peer_after, events, other, SWA, swa_pages, ever)
        own = other[events.kind[other] == Kind.OWNED]
        owned_otherwise = runs.page[runs.of_lists(events.first[own])[1]]
        peer_after[inside(peers[inside(owned_otherwise, pages)], swa_pages)] = ever
        np.maximum.at(peer_after, peer[peer_opens], blocks.given[which[peer_opens]])
        _note_several(peer_after, peer, page, ever)
        _note_several(after, page, peer, ever)
        latest = np.maximum(after[page], peer_after[peer])
    said = np.empty(pages + 1, np.int64)
    said[page] = ever
    says = np.flatnonzero((blocks.sure[which] > latest) & (page > 0))[::-1]
    said[page[says]] = owned[says]
    again = blocks.began[which] > said[page]
    tells = np.ones(runs.page.size, bool)
    tells[full[again]] = tells[swa[again]] = False
    return runs.only(tells)


def _note(latest: np.ndarray, events: Events, other: np.ndarray, pool: int, pages: int, ever: int) -> None:
    """Note in `latest` the events `other` of their pages; `ever` for what they pair or give an owner."""
    kind = events.kind[other]
    here = other[(events.pool[other] == pool) | (kind == Kind.PAIRED)]
    which, run = events.runs.of_lists(_lists(events, here, pool))
    page, lasting = inside(events.runs.page[run], pages), np.isin(events.kind[here], (Kind.OWNED, Kind.PAIRED))[which]
    latest[page] = here[which]
    latest[page[lasting]] = ever


def _note_several(latest: np.ndarray, page: np.ndarray, value: np.ndarray, ever: int) -> None:
    """Note `ever` for pages with more than one value."""
    one = np.empty(latest.size, np.int64)
    one[page] = value
    latest[page[one[page] != value]] = ever


def _lists(events: Events, chosen: np.ndarray, pool: int) -> np.ndarray:
    """Return the list of slots of `pool` that each of the events `chosen` names."""
    if pool == FULL:
        return events.first[chosen]
    return np.where(events.kind[chosen] == Kind.PAIRED, events.second[chosen], events.first[chosen])


@dataclass(frozen=True)
class _Blocks:
    """Events that hand out lists of slots, pair them and give them owners, in this order, [blocks] each.

    No other event names the lists, and the pages of both change at the same places.

    Attributes:
        full: List of slots of FULL.
        swa: Of SWA; `full` where there is none.
        handed: Event that handed out `full`.
        given: Event that handed out `swa`.
        sure: Event from which on the block says all, whatever was before.
        owned: The last event, ascending.
        runs: The block; the run of `full`; that of `swa`, [runs] each.
    """

    full: np.ndarray
    swa: np.ndarray
    handed: np.ndarray
    given: np.ndarray
    sure: np.ndarray
    owned: np.ndarray
    runs: tuple[np.ndarray, np.ndarray, np.ndarray]

    @property
    def began(self) -> np.ndarray:
        return np.minimum(self.handed, self.given)

    def others(self, events: Events) -> np.ndarray:
        """Return the events of no block that a fold reads."""
        other = events.whole.copy()
        for member in (self.handed, self.given, self.sure, self.owned):
            other[member] = False
        return np.flatnonzero(other)

    @classmethod
    def of(cls, events: Events, hybrid: bool) -> _Blocks:
        kind, first, lists = events.kind, events.first, events.bounds.size - 1

        def by_list(chosen: np.ndarray) -> np.ndarray:
            event = np.full(lists, -1)
            event[first[chosen]] = np.flatnonzero(chosen)
            return event

        handed_out, paired = kind == Kind.HANDED_OUT, kind == Kind.PAIRED
        named = np.bincount(first[first >= 0], minlength=lists)
        named += np.bincount(events.second[paired], minlength=lists)
        owned = np.flatnonzero((kind == Kind.OWNED) & events.whole)
        full = swa = first[owned]
        handed = given = by_list(handed_out & (events.pool == FULL))[full]
        sure = owned
        good = (handed >= 0) & (handed < owned) & (named[full] == 2 + hybrid)
        if hybrid:
            sure = by_list(paired)[full]
            good &= (handed < sure) & (sure < owned) & events.whole[sure]
            swa = np.where(good, events.second[sure], full)
            given = by_list(handed_out & (events.pool == SWA))[swa]
            good &= (given >= 0) & (given < sure) & (named[swa] == 2)
            counts = np.diff(events.runs.bounds)
            good &= counts[full] == counts[swa]
        columns, runs = np.stack((full, swa, handed, given, sure, owned))[:, good], events.runs
        which, full = runs.of_lists(columns[0])
        swa = runs.of_lists(columns[1])[1]
        apart = np.diff(runs.start[[full, swa]] - events.bounds[columns[:2, which]], axis=0)[0] != 0
        fit = np.ones(columns.shape[1], bool)
        fit[which[apart]] = False
        here = fit[which]
        return cls(*columns[:, fit], runs=((np.cumsum(fit) - 1)[which[here]], full[here], swa[here]))


def inside(pages: np.ndarray, count: int) -> np.ndarray:
    """`pages`, with 0 for what is no page of a pool of `count`."""
    return np.where((pages < 0) | (pages > count), 0, pages)
