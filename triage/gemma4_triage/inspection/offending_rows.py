"""The rows of the saved page table that hold offences, with a few columns around each offence."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from gemma4_dumps.errors import DumpError
from gemma4_dumps.reader import Dump
from gemma4_dumps.schema import Offence

COLUMNS_AROUND = 3
MAX_COLUMNS = 14


# The table that a translating reader would have used, row for row; a probe saves it where it can be worked out.
TRANSLATED = "translated_page_table"


@dataclass(frozen=True)
class Cell:
    """One column of the row. translated: the id that it should have been, if the dump can tell."""

    column: int
    value: int
    offends: bool
    translated: int | None = None


@dataclass(frozen=True)
class OffendingRow:
    """cells: neighbourhood of the row's first offence; empty if it was not saved, then `missing` says why."""

    table: str
    row: int
    request_slot: int | None
    lower: int
    upper: int
    offences: tuple[Offence, ...]
    cells: tuple[Cell, ...]
    missing: str | None


def offending_rows(dump: Dump, limit: int) -> list[OffendingRow]:
    """At most `limit` rows, in the order in which the probe listed them."""
    by_row: dict[tuple[str, int], list[Offence]] = {}
    for offence in dump.manifest.offences:
        by_row.setdefault((offence.table, offence.row), []).append(offence)
    return [_row(dump, offences) for offences in list(by_row.values())[:limit]]


def _row(dump: Dump, offences: Sequence[Offence]) -> OffendingRow:
    first = offences[0]
    cells: tuple[Cell, ...] = ()
    missing = None
    try:
        cells = _cells(_rows(dump, first), first, {offence.column for offence in offences})
        if TRANSLATED in dump.manifest.tensors:
            cells = _with_translation(cells, dump.tensor(TRANSLATED), first.row)
        if dump.manifest.action == "contained":
            cells = _before_containment(cells, offences)
    except DumpError as error:
        missing = str(error)
    except LookupError as error:
        missing = str(error.args[0])
    return OffendingRow(
        first.table, first.row, first.request_slot, first.lower, first.upper, tuple(offences), cells, missing
    )


def _rows(dump: Dump, first: Offence) -> Mapping[int, np.ndarray]:
    """The offence's row of the saved table, by its number; empty if it is not in the saved part."""
    table = dump.tensor(first.table)
    if table.dtype.kind not in "iu":
        raise LookupError(f"{first.table} holds {table.dtype}, not indices")
    if table.ndim not in (1, 2):
        raise LookupError(f"{first.table} has {table.ndim} dimensions")
    ragged = f"{first.table}_indptr"
    if table.ndim == 1 and ragged in dump.manifest.tensors:
        indptr = dump.tensor(ragged)
        if not 0 <= first.row < indptr.shape[0] - 1:
            return {}
        # An indptr may be what is wrong: a slice of it is cut to what there is.
        begin, end = (max(int(at), 0) for at in indptr[first.row : first.row + 2])
        return {first.row: table[begin:end]}
    rows = table.reshape(1, -1) if table.ndim == 1 else table
    return {first.row: rows[first.row]} if 0 <= first.row < rows.shape[0] else {}


def _cells(rows: Mapping[int, np.ndarray], first: Offence, offending_columns: set[int]) -> tuple[Cell, ...]:
    row = rows.get(first.row)
    if row is None or not 0 <= first.column < row.shape[0]:
        raise LookupError(f"[{first.row}, {first.column}] of {first.table} is not in the saved part")
    begin = max(first.column - COLUMNS_AROUND, 0)
    near = [column for column in offending_columns if first.column <= column < begin + MAX_COLUMNS]
    end = min(max(near) + COLUMNS_AROUND + 1, begin + MAX_COLUMNS, row.shape[0])
    return tuple(Cell(column, int(row[column]), column in offending_columns) for column in range(begin, end))


def _before_containment(cells: tuple[Cell, ...], offences: Sequence[Offence]) -> tuple[Cell, ...]:
    """The table was saved with its bad entries replaced by 0; the probe kept what the listed ones held.

    A translation of such a 0 says nothing about the entry.
    """
    held = {offence.column: offence.value for offence in offences}
    return tuple(
        replace(cell, value=held[cell.column], translated=cell.translated or None) if cell.column in held else cell
        for cell in cells
    )


def _with_translation(cells: tuple[Cell, ...], table: np.ndarray, row: int) -> tuple[Cell, ...]:
    if table.ndim != 2 or table.dtype.kind not in "iu" or row >= table.shape[0]:
        return cells
    return tuple(
        replace(cell, translated=int(table[row, cell.column])) if cell.column < table.shape[1] else cell
        for cell in cells
    )
