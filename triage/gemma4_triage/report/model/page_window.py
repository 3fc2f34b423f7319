"""The rows and columns of a dump's table that a picture shows, read in windows, however large the table is."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from gemma4_dumps.errors import UserError
from gemma4_dumps.reader import Dump
from gemma4_dumps.schema import Manifest
from gemma4_triage.inspection.offending_rows import holds_indices, row_span
from gemma4_triage.replay.call import UNKNOWN
from gemma4_triage.replay.integers import FARTHEST
from gemma4_triage.replay.rebuild import right_table, table_at_fault
from gemma4_triage.report.model.limits import MAX_COLUMNS, MAX_ROWS

_LENGTHS, _SLOTS = "cache_seqlens", "request_slots"


class NoPicture(Exception):
    """Why there is none."""


@dataclass(frozen=True)
class Window:
    """What is shown of a table.

    Attributes:
        ids: [rows, columns] int64, UNKNOWN where the dump has none.
        keys, slots: per row, None where unknown.
    """

    table: str
    ragged: bool
    rows: tuple[int, ...]
    columns: tuple[int, ...]
    table_rows: int
    table_columns: int
    ids: np.ndarray
    right: np.ndarray | None
    keys: tuple[int | None, ...]
    slots: tuple[int | None, ...]
    listed: np.ndarray


def read_window(dump: Dump, table: str) -> Window:
    """Raises DumpError, LookupError for a tensor that is no table."""
    manifest, record = dump.manifest, dump.record(table)
    ragged = f"{table}_indptr" in manifest.tensors and len(record.shape) == 1
    if ragged:
        table_rows = max(dump.record(f"{table}_indptr").shape[0] - 1, 0)
    else:
        table_rows = record.shape[0] if len(record.shape) == 2 else 1
    # Raises where the tensor is no table at all.
    row_span(dump, table, 0)
    offences = [offence for offence in manifest.offences if offence.table == table]
    rows = around((offence.row for offence in offences), table_rows, MAX_ROWS)
    spans = [row_span(dump, table, row) for row in rows]
    unit = 1 if ragged else max(manifest.page_size or 1, 1)
    keys = tuple(
        span[1] if ragged else None if is_written(table) else value_at(dump, _LENGTHS, row)
        for row, span in zip(rows, spans, strict=True)
    )
    widest = max((span[1] for span in spans), default=0)
    needed = max((-(-length // unit) for length in keys if length is not None), default=0)
    table_columns = max(widest, min(needed, 2**31))
    columns = around((offence.column for offence in offences if offence.row in rows), table_columns, MAX_COLUMNS)
    right = right_table(manifest, table)
    return Window(
        table=table,
        ragged=ragged,
        rows=rows,
        columns=columns,
        table_rows=table_rows,
        table_columns=table_columns,
        ids=_before_containment(_entries(dump, table, spans, columns), manifest, table, rows, columns),
        right=None if right is None or ragged else _entries_of(dump, right, rows, columns),
        keys=keys,
        slots=tuple(value_at(dump, _SLOTS, row) for row in rows),
        listed=_listed(manifest, table, rows, columns),
    )


def is_written(name: str) -> bool:
    """Locations that are written: a row of them has as many as it has tokens in this step."""
    return name.endswith("cache_loc")


def value_at(dump: Dump, name: str, row: int) -> int | None:
    """Return one value of a tensor with a value per row. None if the dump has no such."""
    if name not in dump.manifest.tensors:
        return None
    record = dump.record(name)
    if len(record.shape) != 1 or not holds_indices(record) or row >= record.shape[0]:
        return None
    return max(int(dump.window(name, row, row + 1)[0]), 0)


def _entries_of(dump: Dump, table: str, rows: Sequence[int], columns: Sequence[int]) -> np.ndarray:
    return _entries(dump, table, [row_span(dump, table, row) for row in rows], columns)


def _entries(dump: Dump, table: str, spans: Sequence[tuple[int, int]], columns: Sequence[int]) -> np.ndarray:
    """[rows, columns] int64; far ids drawn nearer, as the replay does. No column outside a window of them is read."""
    found = np.full((len(spans), len(columns)), UNKNOWN, np.int64)
    for begin, end in _runs(columns):
        for at, (start, count) in enumerate(spans):
            stop = min(columns[end - 1] + 1, count)
            if columns[begin] >= stop:
                continue
            values = dump.window(table, start + columns[begin], start + stop)
            if values.dtype.kind == "u":
                values = np.minimum(values, np.asarray(min(FARTHEST, np.iinfo(values.dtype).max), values.dtype))
            found[at, begin : begin + values.shape[0]] = np.clip(values.astype(np.int64), -FARTHEST, FARTHEST)
    return found


def _runs(columns: Sequence[int]) -> list[tuple[int, int]]:
    """Positions [begin, end) of columns that follow each other without a gap."""
    breaks = [at for at in range(1, len(columns)) if columns[at] != columns[at - 1] + 1]
    edges = [0, *breaks, len(columns)]
    return [(begin, end) for begin, end in pairwise(edges) if begin < end]


def _listed(manifest: Manifest, table: str, rows: Sequence[int], columns: Sequence[int]) -> np.ndarray:
    found = np.zeros((len(rows), len(columns)), bool)
    row_at, column_at = {row: at for at, row in enumerate(rows)}, {column: at for at, column in enumerate(columns)}
    for offence in manifest.offences:
        if offence.table == table and offence.row in row_at and offence.column in column_at:
            found[row_at[offence.row], column_at[offence.column]] = True
    return found


def _before_containment(
    ids: np.ndarray, manifest: Manifest, table: str, rows: Sequence[int], columns: Sequence[int]
) -> np.ndarray:
    """Return the ids as they were before containment.

    The table was saved with its bad entries replaced by 0; the probe kept what the listed ones held.
    """
    if manifest.action == "contained":
        for offence in manifest.offences:
            if offence.table == table and offence.row in rows and offence.column in columns:
                held = min(max(offence.value, -FARTHEST), FARTHEST)
                ids[rows.index(offence.row), columns.index(offence.column)] = held
    return ids


def around(points: Iterable[int], count: int, limit: int) -> tuple[int, ...]:
    """Return at most `limit` of range(count): the points that are in it and as much of what surrounds them as fits."""
    inside = sorted({point for point in points if 0 <= point < count})[:limit] or ([0] if count else [])
    if count <= limit:
        return tuple(range(count))
    chosen, radius = set(inside), 1
    while True:
        grown = {near for point in inside for near in range(max(point - radius, 0), min(point + radius + 1, count))}
        if len(grown) > limit:
            return tuple(sorted(chosen))
        chosen, radius = grown, radius + 1


def index_table(manifest: Manifest) -> str:
    """Return the table that the offences are in. Raises NoPicture."""
    try:
        return table_at_fault(manifest)
    except UserError:
        named = (offence.table for offence in manifest.offences)
        found = next((name for name in named if name in manifest.tensors and _is_index(name)), None)
    if found is None:
        raise NoPicture("no page table or slot list is in this dump")
    return found


def _is_index(name: str) -> bool:
    return any(word in name for word in ("page_table", "kv_indices", "cache_loc"))
