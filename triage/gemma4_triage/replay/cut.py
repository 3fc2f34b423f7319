"""Smaller calls from a call: fewer rows, columns or keys, and page ids renumbered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from gemma4_triage.replay.call import UNKNOWN, AttentionCall
from gemma4_triage.replay.image import pages_of


@dataclass(frozen=True)
class Cut:
    """A call, and which rows and columns of the dump its own are."""

    call: AttentionCall
    rows: tuple[int, ...]
    columns: tuple[int, ...]


def whole(call: AttentionCall) -> Cut:
    return Cut(call, tuple(range(call.rows)), tuple(range(call.ids.shape[1])))


def keep_rows(cut: Cut, rows: Sequence[int]) -> Cut:
    """rows: of `cut`, ascending."""
    call, kept = cut.call, list(rows)
    smaller = replace(
        call,
        ids=call.ids[kept],
        translated=None if call.translated is None else call.translated[kept],
        listed=call.listed[kept],
        key_counts=call.key_counts[kept],
        query_counts=call.query_counts[kept],
        request_slots=call.request_slots[kept],
    )
    return _trimmed(Cut(smaller, tuple(cut.rows[row] for row in kept), cut.columns))


def keep_columns(cut: Cut, columns: Sequence[int]) -> Cut:
    """columns: of `cut`, ascending. A row loses the keys of columns that go; its last page stays as full as it is."""
    call, kept = cut.call, list(columns)
    live = call.live[:, kept]
    begins = np.asarray(kept, np.int64)[None, :] * call.unit
    keys = np.where(live, np.minimum(call.key_counts[:, None] - begins, call.unit), 0).sum(axis=1)
    smaller = replace(
        call,
        ids=call.ids[:, kept],
        translated=None if call.translated is None else call.translated[:, kept],
        listed=call.listed[:, kept],
    )
    return _trimmed(Cut(_with_keys(smaller, keys), cut.rows, tuple(cut.columns[column] for column in kept)))


def keep_keys(cut: Cut, row: int, keys: int) -> Cut:
    """Return the first `keys` keys of a row."""
    counts = cut.call.key_counts.copy()
    counts[row] = keys
    return _trimmed(replace(cut, call=_with_keys(cut.call, counts)))


def renumbered(cut: Cut) -> Cut:
    """Pages that live entries name become 1, 2, 3 ...; the buffer ends behind the last; outside keeps its distance."""
    call = cut.call
    page_size = call.geometry.page_size
    tables = [call.ids] if call.translated is None else [call.ids, call.translated]
    bound = call.bound if call.paged else -(-call.bound // page_size)
    live = np.concatenate([pages_of(call, table[call.live & (table != UNKNOWN)]) for table in tables])
    named = np.unique(live[(live > 0) & (live < bound)])

    def renumber(table: np.ndarray) -> np.ndarray:
        pages = pages_of(call, table)
        known = np.isin(pages, named)
        new = np.where(known, np.searchsorted(named, pages) + 1, np.where(pages >= bound, pages - bound + end, pages))
        new = new if call.paged else new * page_size + table % page_size
        return np.where((table == UNKNOWN) | ~call.live, table, new)

    end = named.shape[0] + 1
    ids, *rest = map(renumber, tables)
    smaller = replace(call, ids=ids, translated=rest[0] if rest else None, bound=end if call.paged else end * page_size)
    return replace(cut, call=smaller)


def _with_keys(call: AttentionCall, keys: np.ndarray) -> AttentionCall:
    return replace(call, key_counts=keys, query_counts=np.minimum(call.query_counts, keys))


def _trimmed(cut: Cut) -> Cut:
    """Cut the columns behind the longest row, as a call is rebuilt."""
    call = cut.call
    needed = int(-(-call.key_counts.max(initial=0) // call.unit))
    smaller = replace(
        call,
        ids=call.ids[:, :needed],
        translated=None if call.translated is None else call.translated[:, :needed],
        listed=call.listed[:, :needed],
    )
    return replace(cut, call=smaller, columns=cut.columns[:needed])
