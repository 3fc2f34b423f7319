"""One KV pool of the reference allocator: which pages are free, in which order, and what is wrong with a call's slots.

Written from the semantics of SGLang's paged allocators, not from the probe that wrote the dump. Slots come and go by
whole pages, and page 0 is the dummy.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice

FREE, USED, UNKNOWN = 0, 1, 2
FULL, SWA = "full", "swa"
MAPPING_CHANGED = "mapping_changed"
WRONG_COUNT = "wrong_count"
CHANGED_BETWEEN = "changed_between_calls"
"""Invariants of the replay alone, beside those of gemma4_dumps' VERDICTS."""


@dataclass(frozen=True)
class Broken:
    """An invariant that a call breaks: by which slots or pages of which pool, and in words by the first of them."""

    verdict: str
    pool: str
    pages: tuple[int, ...]
    text: str


@dataclass
class Pool:
    """The pages of one pool.

    Attributes:
        free: SGLang's list of pages to hand out; None if its order is not known.
        released: SGLang's list of pages that were given back and are not sorted in yet.
        state: FREE, USED or UNKNOWN of each page, page 0 included.
    """

    name: str
    pages: int
    page_size: int
    need_sort: bool
    free: deque[int] | None = None
    released: list[int] = field(default_factory=list)
    state: bytearray = field(default_factory=bytearray)

    def __post_init__(self) -> None:
        self.state = bytearray([UNKNOWN]) * (self.pages + 1)

    @property
    def slots(self) -> range:
        """Return those that may be handed out."""
        return range(self.page_size, (self.pages + 1) * self.page_size)

    @property
    def legal(self) -> str:
        """Return in words which slots may be handed out."""
        return f"legal are {self.slots.start} to {self.slots.stop - 1}"

    def start(self, free: Iterable[int], released: Iterable[int]) -> Iterable[Broken]:
        """Begin with these lists; every other page is in use. Yields what is wrong with the lists already."""
        self.free, self.released = deque(free), list(released)
        self.state[:] = bytes([USED]) * (self.pages + 1)
        outside, twice = [], []
        for page in (*self.free, *self.released):
            if not 0 < page <= self.pages:
                outside.append(page)
            elif self.state[page] == FREE:
                twice.append(page)
            else:
                self.state[page] = FREE
        if outside:
            text = f"the {self.name} free list holds {outside[0]}, and pages 1 to {self.pages} are its own"
            yield Broken("free_out_of_range", self.name, tuple(outside), text)
        if twice:
            text = f"the {self.name} free list holds page {twice[0]} more than once"
            yield Broken("double_free", self.name, tuple(twice), text)

    def merge_if(self, short: bool) -> None:
        """Sort what was released back into the free list, as SGLang does with `need_sort` when it runs short."""
        if self.need_sort and short and self.free is not None and self.released:
            self.free, self.released = deque(sorted([*self.free, *self.released])), []

    def take(self, pages: Sequence[int]) -> None:
        """Mark these as in use. If they are not the free list's first, its order is not known any more."""
        if self.free is not None and [*islice(self.free, len(pages))] == [*pages]:
            for _ in pages:
                self.free.popleft()
        else:
            self.free = None
        self._set(pages, USED)

    def give(self, slots: Sequence[int], by_row: bool = False) -> list[int]:
        """Free the pages of these slots, and return them in the order in which SGLang lists them.

        Args:
            slots: Of this pool.
            by_row: That of the slots; else pages are listed by number.
        """
        named = dict.fromkeys(slot // self.page_size for slot in slots)
        pages = list(slots) if self.page_size == 1 else list(named) if by_row else sorted(named)
        if self.free is not None and pages:
            if self.page_size == 1:
                (self.released if self.need_sort else self.free).extend(pages)
            elif self.need_sort:
                self.released[:0] = pages
            else:
                self.free.extendleft(reversed(pages))
        self._set(pages, FREE)
        return pages

    def free_pages(self) -> set[int]:
        return {page for page in range(1, self.pages + 1) if self.state[page] == FREE}

    def of(self, page: int) -> int:
        """Return the state of a page; what is no page of this pool is taken for one in use."""
        return self.state[page] if 0 <= page <= self.pages else USED

    def _set(self, pages: Iterable[int], state: int) -> None:
        for page in pages:
            if 0 < page <= self.pages:
                self.state[page] = state


class Findings:
    """What is wrong with the slots of one call, by invariant and pool: all pages, and the sentence of the first."""

    def __init__(self, page_size: int) -> None:
        self._page_size = page_size
        self._found: dict[tuple[str, str], tuple[str, dict[int, None]]] = {}

    def add(self, verdict: str, pool: str, slot: int, text: str) -> None:
        self._found.setdefault((verdict, pool), (text, {}))[1][slot // self._page_size] = None

    def broken(self) -> list[Broken]:
        return [Broken(*key, tuple(pages), text) for key, (text, pages) in self._found.items()]
