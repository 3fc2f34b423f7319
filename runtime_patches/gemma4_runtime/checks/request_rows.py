"""What a request's row of req_to_token must hold, by what it held before, by its shape, and by who owns its pages.

| why         | what is wrong, in the order in which it is looked for                                                 |
|-------------|-------------------------------------------------------------------------------------------------------|
| `changed`   | an entry differs from what it was at the check before, and nothing has written the row's tokens since |
| `prefix`    | an entry of the tokens that the prefix cache holds is not what its nodes hold                         |
| `moved`     | its page stood at another place of this row at the check before, and the cache got the row since      |
| `outside`   | no slot of the pool, the dummy page included                                                          |
| `misplaced` | not at its token's place within a page, or in another page than the rest of that page's tokens        |
| `twice`     | its page stands in this row before                                                                    |
| `owner`     | its page is not this request's, by the ledger; one of its own that is nowhere else belongs there       |
| `shared`    | its page stands in another request's row, and not as a prefix of both                                 |

Pure; host arrays in, what is wrong out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Row:
    """The row of one request.

    Attributes:
        slot: Number of the row.
        entries: Slots of its tokens, int64 [tokens].
        protected: How many of them, from the first on, the prefix cache holds.
        before: The same at the check before, [any], if nothing has written them since; None if that is not known.
        prefix: What the prefix cache's nodes hold for the first tokens, [protected]; None if it has none.
        owners: Request slot by page, [pages + 1], -1 for nobody; None without a ledger.
        earlier: Its entries at the check before, [any], whatever has been written since; None if that is not known.
        allocated: How many tokens it has slots for, those that hold none yet included; None if that is not known.
    """

    slot: int
    entries: np.ndarray
    protected: int = 0
    before: np.ndarray | None = None
    prefix: np.ndarray | None = None
    owners: np.ndarray | None = None
    earlier: np.ndarray | None = None
    allocated: int | None = None


@dataclass(frozen=True)
class WrongEntry:
    """One entry. row: position in the list of rows. expected: what must stand there; None if that is not known."""

    why: str
    row: int
    column: int
    value: int
    expected: int | None = None


def check_rows(rows: Sequence[Row], page_size: int, end: int) -> tuple[WrongEntry, ...]:
    """Return what is wrong for the first reason that applies to any row; empty if nothing is.

    Args:
        rows: Of requests that run, each once.
        page_size: Tokens of a page.
        end: The first slot that the pool does not have.
    """
    for check in (_changed, _prefix, _moved, _outside, _misplaced, _twice, _owner):
        found = tuple(wrong for number, row in enumerate(rows) for wrong in check(number, row, page_size, end))
        if found:
            return found
    return tuple(_shared(rows, page_size))


def _unlike(why: str, number: int, found: np.ndarray, expected: np.ndarray) -> Iterator[WrongEntry]:
    count = min(found.size, expected.size)
    for column in np.flatnonzero(found[:count] != expected[:count]):
        yield WrongEntry(why, number, int(column), int(found[column]), int(expected[column]))


def _changed(number: int, row: Row, page_size: int, end: int) -> Iterator[WrongEntry]:
    if row.before is not None:
        yield from _unlike("changed", number, row.entries, row.before)


def _prefix(number: int, row: Row, page_size: int, end: int) -> Iterator[WrongEntry]:
    if row.prefix is not None:
        yield from _unlike("prefix", number, row.entries[: row.protected], row.prefix)


def _moved(number: int, row: Row, page_size: int, end: int) -> Iterator[WrongEntry]:
    """Find what the prefix cache wrote back in another order: its own pages in a row's place are others than those."""
    if row.before is not None or row.earlier is None:
        return
    had = {int(page): at for at, page in enumerate(row.earlier[::page_size] // page_size)}
    for wrong in _unlike("moved", number, row.entries, row.earlier):
        at = had.get(wrong.value // page_size)
        if at is not None and at != wrong.column // page_size:
            yield wrong


def _outside(number: int, row: Row, page_size: int, end: int) -> Iterator[WrongEntry]:
    for column in np.flatnonzero((row.entries < page_size) | (row.entries >= end)):
        yield WrongEntry("outside", number, int(column), int(row.entries[column]))


def _misplaced(number: int, row: Row, page_size: int, end: int) -> Iterator[WrongEntry]:
    place = np.arange(row.entries.size)
    first = row.entries[place - place % page_size]
    expected = first - first % page_size + place % page_size
    yield from _unlike("misplaced", number, row.entries, expected)


def _twice(number: int, row: Row, page_size: int, end: int) -> Iterator[WrongEntry]:
    pages = row.entries[::page_size] // page_size
    _, first = np.unique(pages, return_index=True)
    if first.size == pages.size:
        return
    for at in np.setdiff1d(np.arange(pages.size), first):
        yield WrongEntry("twice", number, int(at) * page_size, int(row.entries[at * page_size]))


def _owner(number: int, row: Row, page_size: int, end: int) -> Iterator[WrongEntry]:
    if row.owners is None:
        return
    begin = -(-row.protected // page_size) * page_size
    columns = range(begin, row.entries.size, page_size)
    bad = [column for column in columns if row.owners[row.entries[column] // page_size] != row.slot]
    lacking = _lacking(row, begin, page_size) if len(bad) == 1 else None
    for column in bad:
        yield WrongEntry("owner", number, column, int(row.entries[column]), lacking)


def _lacking(row: Row, begin: int, page_size: int) -> int | None:
    """Return the first slot of the only page that is the request's own and stands nowhere in its row from `begin` on.

    None where there is no such page, or more, or where it may be one for tokens to come.
    """
    if row.allocated is None or -(-row.allocated // page_size) != -(-row.entries.size // page_size):
        return None
    own = np.setdiff1d(np.flatnonzero(row.owners == row.slot), row.entries[begin:] // page_size)
    return int(own[0]) * page_size if own.size == 1 else None


def _shared(rows: Sequence[Row], page_size: int) -> Iterator[WrongEntry]:
    """Yield entries of pages that are another request's own; those of the prefix cache may stand in many rows."""
    owner = np.full(1 + max((int(row.entries.max()) for row in rows if row.entries.size), default=0) // page_size, -1)
    # The first of several is the last to be put down.
    for number, row in reversed(list(enumerate(rows))):
        owner[row.entries[row.protected :] // page_size] = number
    for number, row in enumerate(rows):
        found = owner[row.entries[::page_size] // page_size]
        for at in np.flatnonzero((found >= 0) & (found != number)).tolist():
            yield WrongEntry("shared", number, at * page_size, int(row.entries[at * page_size]))


def check_path(path: np.ndarray, value: np.ndarray, back: np.ndarray, page_size: int) -> tuple[WrongEntry, ...]:
    """Return what is wrong with the slots that the prefix cache has for tokens which were just put into it.

    `twice`: nodes have more slots than tokens, some of them again, although what was put in has none twice.
    `given back`: the first slot of a page that was given back meanwhile.

    Args:
        path: What the nodes on the way to these tokens hold, int64 [any].
        value: What was put in, int64 [tokens].
        back: Pages that were given back while it was put in, [any].
        page_size: Tokens of a page.
    """
    _, first = np.unique(path, return_index=True)
    again = np.setdiff1d(np.arange(path.size), first)
    if again.size and path.size > value.size and np.unique(value).size == value.size:
        return tuple(WrongEntry("twice", 0, int(at), int(path[at])) for at in again)
    begins = np.arange(0, path.size, page_size)
    at = begins[np.isin(path[begins] // page_size, back)]
    return tuple(WrongEntry("given back", 0, int(column), int(path[column])) for column in at)


def torn_pages(value: np.ndarray, page_size: int) -> tuple[WrongEntry, ...]:
    """Return the slots, of what is put into the prefix cache, [tokens], that do not follow the first one of their page.

    Each is what an earlier request left there, or was overwritten.
    """
    pages = value[: value.size // page_size * page_size].reshape(-1, page_size)
    expected = pages[:, :1] // page_size * page_size + np.arange(page_size)
    return tuple(
        WrongEntry("torn", 0, int(at), int(value[at]), int(expected.flat[at]))
        for at in np.flatnonzero(pages != expected)
    )


def check_values(found: Sequence[int], expected: Sequence[int | None]) -> tuple[WrongEntry, ...]:
    """Return the entries of a batch's list, [n], that are not what their requests say, [n]; None: nothing is said."""
    return tuple(
        WrongEntry("unlike", number, 0, value, wanted)
        for number, (value, wanted) in enumerate(zip(found, expected, strict=False))
        if wanted is not None and value != wanted
    )
