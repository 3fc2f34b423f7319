"""The rows of the saved page table that hold offences, with a few columns around each offence."""

from collections.abc import Sequence
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
        cells = _cells(dump.tensor(first.table), first, {offence.column for offence in offences})
        if TRANSLATED in dump.manifest.tensors:
            cells = _with_translation(cells, dump.tensor(TRANSLATED), first.row)
    except DumpError as error:
        missing = str(error)
    except LookupError as error:
        missing = str(error.args[0])
    return OffendingRow(
        first.table, first.row, first.request_slot, first.lower, first.upper, tuple(offences), cells, missing
    )


def _cells(table: np.ndarray, first: Offence, offending_columns: set[int]) -> tuple[Cell, ...]:
    if table.dtype.kind not in "iu":
        raise LookupError(f"{first.table} holds {table.dtype}, not indices")
    if table.ndim not in (1, 2):
        raise LookupError(f"{first.table} has {table.ndim} dimensions")
    rows = table.reshape(1, -1) if table.ndim == 1 else table
    if not (0 <= first.row < rows.shape[0] and 0 <= first.column < rows.shape[1]):
        raise LookupError(f"[{first.row}, {first.column}] is not in the saved part, shape {list(table.shape)}")
    begin = max(first.column - COLUMNS_AROUND, 0)
    near = [column for column in offending_columns if first.column <= column < begin + MAX_COLUMNS]
    end = min(max(near) + COLUMNS_AROUND + 1, begin + MAX_COLUMNS, rows.shape[1])
    return tuple(
        Cell(column, int(rows[first.row, column]), column in offending_columns) for column in range(begin, end)
    )


def _with_translation(cells: tuple[Cell, ...], table: np.ndarray, row: int) -> tuple[Cell, ...]:
    if table.ndim != 2 or table.dtype.kind not in "iu" or row >= table.shape[0]:
        return cells
    return tuple(
        replace(cell, translated=int(table[row, cell.column])) if cell.column < table.shape[1] else cell
        for cell in cells
    )
