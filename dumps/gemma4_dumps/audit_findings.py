"""What a dump of the leak audit says, read from its table and scalars with numpy alone."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal

from .errors import DumpUnreadable
from .reader import Dump

RULE = "leak-audit"
EventKind = Literal["handed_out", "owned", "given", "shared", "free_asked", "freed", "cleared"]
"""What an event of an audit's dump is.

given: to the prefix cache, beside or instead of the request that had them. shared: a request took them from there.
"""
TABLE, LIVES, SHARES = "suspects", "lives", "shares"
MAX_ROWS = 100_000
"""More than fit a dump at its default cap."""
_SIDES = ("available", "evictable", "protected", "session_held", "uncached")


@dataclass(frozen=True)
class Suspect:
    """One page (or request slot), in how many places it is, whose it was, and what happened to it.

    Attributes:
        page: Its number.
        pool: Whose it is.
        fault: What is wrong with it.
        places: In how many it is.
        owner: Request slot and generation, None if not known.
        alloc_site: Who handed it out.
        alloc_step: When; None if never.
        free_site: Who gave it back.
        free_step: When; None if never.
        peer: Its page in the other pool.
        last_event: The latest.
    """

    page: int
    pool: str
    fault: str
    places: int
    owner: tuple[int, int] | None
    alloc_site: str
    alloc_step: int | None
    free_site: str
    free_step: int | None
    peer: int | None
    last_event: str


@dataclass(frozen=True)
class Share:
    """One request that took a page from the prefix cache: its slot and generation, who asked, and when."""

    owner: tuple[int, int]
    site: str
    step: int

    def text(self) -> str:
        """`taken from there by slot 3, generation 2 (alloc_for_extend), step 7`."""
        return f"taken from there by slot {self.owner[0]}, generation {self.owner[1]} ({self.site}), step {self.step}"


@dataclass(frozen=True)
class Life:
    """One life of a page, from its hand-out to the next one.

    Attributes:
        owner: Request slot and generation, None if not known.
        alloc_site: Who handed it out.
        alloc_step: When.
        given_step: When the prefix cache got it; None if it did not.
        free_site: Who gave it back; empty while it is in use.
        free_step: When; None while it is in use.
        shared: The latest that took it from the prefix cache, oldest first.
    """

    owner: tuple[int, int] | None
    alloc_site: str
    alloc_step: int | None
    given_step: int | None
    free_site: str
    free_step: int | None
    shared: tuple[Share, ...] = ()

    def text(self) -> str:
        """`slot 2, generation 3: alloc_for_extend, step 4; given to the cache, step 4; evict_tree, step 9`."""
        whose = "owner unknown" if self.owner is None else f"slot {self.owner[0]}, generation {self.owner[1]}"
        parts = [f"{self.alloc_site}, step {self.alloc_step}"]
        parts += [] if self.given_step is None else [f"given to the prefix cache, step {self.given_step}"]
        parts += [share.text() for share in self.shared]
        parts += [] if self.free_step is None else [f"given back by {self.free_site}, step {self.free_step}"]
        return f"{whose}: {'; '.join(parts)}"


@dataclass(frozen=True)
class PoolEquation:
    """`sides` add up to `total` where the pool is whole, in tokens; for request slots in slots."""

    pool: str
    sides: Mapping[str, int]
    total: int

    @property
    def accounted(self) -> int:
        return sum(self.sides.values())

    @property
    def holds(self) -> bool:
        return self.accounted == self.total

    def text(self) -> str:
        """Return both sides written out."""
        left = " + ".join(f"{value} {name.replace('_', '-')}" for name, value in self.sides.items())
        missing = self.total - self.accounted
        end = "" if self.holds else f": {missing} missing" if missing > 0 else f": {-missing} too many"
        return f"{left} = {self.accounted} {'=' if self.holds else '!='} {self.total}{end}"


@dataclass(frozen=True)
class Lost:
    """Pages of a pool that belong to nobody and are not free, of one owner: how many each site handed out, and when.

    Attributes:
        pool: Whose they are.
        owner: Request slot and generation, None if not known.
        handed_out: (site, scheduler step, pages), in the order found.
    """

    pool: str
    owner: tuple[int, int] | None
    handed_out: tuple[tuple[str, int | None, int], ...]

    @property
    def pages(self) -> int:
        return sum(pages for _, _, pages in self.handed_out)

    def by_site(self) -> dict[str, int]:
        """Pages of each site, whatever the step."""
        found: Counter[str] = Counter()
        for site, _, pages in self.handed_out:
            found[site] += pages
        return dict(found)

    def text(self) -> str:
        """`slot 1, generation 1 lost 9: 1 from alloc_for_extend (at step 0), 8 from spec_v2_decode (at step 1)`."""
        whose = "an unknown owner" if self.owner is None else f"slot {self.owner[0]}, generation {self.owner[1]}"
        parts = [f"{pages} from {site} ({self._when(site)})" for site, pages in self.by_site().items()]
        return f"{whose} lost {self.pages}: {', '.join(parts)}"

    def _when(self, site: str) -> str:
        steps = [(step, pages) for of, step, pages in self.handed_out if of == site]
        if len(steps) == 1:
            return _at(steps[0][0])
        return ", ".join(f"{pages} {_at(step)}" for step, pages in steps)


def lost(found: Iterable[Suspect]) -> list[Lost]:
    """Say what each owner lost of each pool, in the order of `found`. Request slots are no pages."""
    counts: dict[tuple[str, tuple[int, int] | None], Counter[tuple[str, int | None]]] = {}
    for one in found:
        if one.fault == "nowhere" and one.pool != "requests":
            counts.setdefault((one.pool, one.owner), Counter())[one.alloc_site, one.alloc_step] += 1
    return [
        Lost(pool, owner, tuple((site, step, pages) for (site, step), pages in sites.items()))
        for (pool, owner), sites in counts.items()
    ]


def suspects(dump: Dump) -> list[Suspect]:
    """Return the rows of the table.

    Raises:
        DumpUnreadable: the table or the words for its codes are missing, or do not fit.
    """
    scalars = dump.manifest.scalars
    columns = _words(scalars, "columns")
    words = {name: _words(scalars, name) for name in ("pools", "sites", "faults", "last_events")}
    if TABLE not in dump.manifest.tensors:
        raise DumpUnreadable(f"an audit without its table of {TABLE}")
    layout = dump.record(TABLE)
    if len(layout.shape) != 2 or layout.shape[1] != len(columns) or not layout.dtype.startswith(("int", "uint")):
        raise DumpUnreadable(f"{TABLE} is {layout.dtype}{list(layout.shape)}, and {len(columns)} columns are named")
    if layout.shape[0] > MAX_ROWS:
        raise DumpUnreadable(f"{TABLE} has {layout.shape[0]} rows; at most {MAX_ROWS} are read")
    with _readable(TABLE):
        return [_suspect(dict(zip(columns, row, strict=True)), words) for row in dump.tensor(TABLE).tolist()]


def lives(dump: Dump) -> dict[tuple[str, int], list[Life]]:
    """Return the lives of each suspect page by (pool, page), oldest first; maybe none.

    Raises:
        DumpUnreadable: the table or the words for its codes do not fit.
    """
    found: dict[tuple[str, int], list[Life]] = {}
    with _readable(LIVES):
        for key, row, sites in _rows(dump, LIVES, "lives_columns"):
            found.setdefault(key, []).append(_life(row, sites))
    with _readable(SHARES):
        for key, row, sites in _rows(dump, SHARES, "shares_columns"):
            of_page, taken = found.get(key, []), _share(row, sites)
            # Of the latest life that had begun: what the cache lends it does not hand out meanwhile.
            at = max((at for at, life in enumerate(of_page) if (life.alloc_step or 0) <= taken.step), default=None)
            if at is not None:
                of_page[at] = replace(of_page[at], shared=(*of_page[at].shared, taken))
    return found


def says_more(of_page: Sequence[Life]) -> bool:
    """Return whether the lives of a page say more than a suspect's row: of another life, or of who shared it."""
    return len(of_page) > 1 or any(life.shared for life in of_page)


def _rows(dump: Dump, name: str, columns_in: str) -> Iterator[tuple[tuple[str, int], dict[str, int], list[str]]]:
    """Yield pool and page, the named columns and the words for sites of each row of a table; none if it is not there.

    Raises DumpUnreadable where they do not fit.
    """
    if name not in dump.manifest.tensors:
        return
    scalars = dump.manifest.scalars
    columns, pools, sites = (_words(scalars, words) for words in (columns_in, "pools", "sites"))
    layout = dump.record(name)
    if len(layout.shape) != 2 or layout.shape[1] != len(columns) or not layout.dtype.startswith(("int", "uint")):
        raise DumpUnreadable(f"{name} is {layout.dtype}{list(layout.shape)}, and {len(columns)} columns are named")
    if layout.shape[0] > MAX_ROWS:
        raise DumpUnreadable(f"{name} has {layout.shape[0]} rows; at most {MAX_ROWS} are read")
    for values in dump.tensor(name).tolist():
        row = dict(zip(columns, values, strict=True))
        yield (_word(pools, row["pool"]), row["page"]), row, sites


@contextmanager
def _readable(name: str) -> Iterator[None]:
    try:
        yield
    except (KeyError, IndexError) as error:
        raise DumpUnreadable(f"{name} holds a code without a word, or lacks a column: {error}") from error


def _share(row: Mapping[str, int], sites: list[str]) -> Share:
    return Share((row["request_slot"], row["request_generation"]), _word(sites, row["site"]), row["step"])


def _life(row: Mapping[str, int], sites: list[str]) -> Life:
    freed = _step(row["free_step"])
    return Life(
        owner=(row["owner_slot"], row["owner_generation"]) if row["owner_slot"] > 0 else None,
        alloc_site=_word(sites, row["alloc_site"]),
        alloc_step=_step(row["alloc_step"]),
        given_step=_step(row["given_step"]),
        free_site="" if freed is None else _word(sites, row["free_site"]),
        free_step=freed,
    )


def equations(dump: Dump) -> list[PoolEquation]:
    """Return one per pool whose numbers the dump has."""
    return list(_equations(dump.manifest.scalars))


def _equations(scalars: Mapping[str, Any]) -> Iterator[PoolEquation]:
    for pool in ("full", "swa", "requests"):
        found = {side: scalars.get(f"{pool}_{side}") for side in (*_SIDES, "total")}
        numbers = {side: number for side, number in found.items() if isinstance(number, int)}
        if len(numbers) == len(found):
            yield PoolEquation(pool, {side: numbers[side] for side in _SIDES}, numbers["total"])


def _words(scalars: Mapping[str, Any], name: str) -> list[str]:
    words = scalars.get(name)
    if not isinstance(words, str):
        raise DumpUnreadable(f"the scalar {name!r}, which names {TABLE}'s columns or codes, is missing")
    return words.split(",")


def _suspect(row: Mapping[str, int], words: Mapping[str, list[str]]) -> Suspect:
    known = row["owner_slot"] > 0
    return Suspect(
        page=row["page"],
        pool=_word(words["pools"], row["pool"]),
        fault=_word(words["faults"], row["fault"]),
        places=row["places"],
        owner=(row["owner_slot"], row["owner_generation"]) if known else None,
        alloc_site=_word(words["sites"], row["alloc_site"]),
        alloc_step=_step(row["alloc_step"]),
        free_site=_word(words["sites"], row["free_site"]),
        free_step=_step(row["free_step"]),
        peer=row["peer"] or None,
        last_event=_word(words["last_events"], row["last_event"]),
    )


def _word(words: list[str], code: int) -> str:
    if code < 0:
        raise IndexError(code)
    return words[code]


def _step(step: int) -> int | None:
    return step if step >= 0 else None


def _at(step: int | None) -> str:
    return "at an unknown step" if step is None else f"at step {step}"
