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
            group that has the request; for FREED and FREE_ASKED, of that which has the request that gave them back,
            where that is known; else -1.
        slots: int64, all lists one after the other; list i is slots[bounds[i] : bounds[i + 1]], and may serve many
            events.
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
    def of(cls, events: Events, chosen: np.ndarray, pool: int, pages: int) -> PageRows:
        """Rows of the events `chosen`, ascending, in a pool of `pages` pages. Of PAIRED the lists of that pool."""
        runs, kinds = events.runs, events.kind[chosen]
        paired = kinds == Kind.PAIRED
        lists = np.where(paired & (pool == SWA), events.second[chosen], events.first[chosen])
        counts = runs.bounds[lists + 1] - runs.bounds[lists]
        which = np.repeat(np.arange(chosen.size), counts)
        run = np.arange(which.size) + np.repeat(runs.bounds[lists] - np.cumsum(counts) + counts, counts)
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


def inside(pages: np.ndarray, count: int) -> np.ndarray:
    """`pages`, with 0 for what is no page of a pool of `count`."""
    return np.where((pages < 0) | (pages > count), 0, pages)
