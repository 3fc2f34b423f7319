"""The rows of the saved page table that hold offences, with a few columns around each offence."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from gemma4_dumps.errors import DumpError
from gemma4_dumps.reader import Dump
from gemma4_dumps.schema import Offence, TensorRecord

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
    """Return at most `limit` rows, in the order in which the probe listed them."""
    by_row: dict[tuple[str, int], list[Offence]] = {}
    for offence in dump.manifest.offences:
        by_row.setdefault((offence.table, offence.row), []).append(offence)
    return [_row(dump, offences) for offences in list(by_row.values())[:limit]]


def _row(dump: Dump, offences: Sequence[Offence]) -> OffendingRow:
    first = offences[0]
    cells: tuple[Cell, ...] = ()
    missing = None
    try:
        cells = _cells(dump, first, {offence.column for offence in offences})
        if TRANSLATED in dump.manifest.tensors:
            cells = _with_translation(cells, dump, first.row)
        if dump.manifest.action == "contained":
            cells = _before_containment(cells, offences)
    except DumpError as error:
        missing = str(error)
    except LookupError as error:
        missing = str(error.args[0])
    return OffendingRow(
        first.table, first.row, first.request_slot, first.lower, first.upper, tuple(offences), cells, missing
    )


def row_span(dump: Dump, table: str, row: int) -> tuple[int, int]:
    """Return where a row begins in the flattened table, and how many columns it has; none if it is not saved.

    A table of any size is not read for it.

    Raises:
        LookupError: the tensor is no table.
        DumpError: it cannot be read.
    """
    record = dump.record(table)
    if not holds_indices(record):
        raise LookupError(f"{table} holds {record.dtype}, not indices")
    if len(record.shape) not in (1, 2):
        raise LookupError(f"{table} has {len(record.shape)} dimensions")
    ragged = f"{table}_indptr"
    if len(record.shape) == 1 and ragged in dump.manifest.tensors:
        return _ragged_span(dump, ragged, row, record.shape[0])
    rows, columns = record.shape if len(record.shape) == 2 else (1, record.shape[0])
    return (row * columns, columns) if 0 <= row < rows else (0, 0)


def _ragged_span(dump: Dump, indptr: str, row: int, length: int) -> tuple[int, int]:
    record = dump.record(indptr)
    if not holds_indices(record) or len(record.shape) != 1:
        raise LookupError(f"{indptr} is {record.dtype}{list(record.shape)}, not a list of row ends")
    if not 0 <= row < record.shape[0] - 1:
        return (0, 0)
    # An indptr may be what is wrong: what it says is cut to what there is.
    begin, end = (min(max(int(at), 0), length) for at in dump.window(indptr, row, row + 2))
    return begin, max(end - begin, 0)


def holds_indices(record: TensorRecord) -> bool:
    """Say whether a tensor's values are integers."""
    # By name: bfloat16 and float8 are stored as the bits of an integer type.
    return record.dtype.startswith(("int", "uint"))


def _cells(dump: Dump, first: Offence, offending_columns: set[int]) -> tuple[Cell, ...]:
    start, columns = row_span(dump, first.table, first.row)
    if not 0 <= first.column < columns:
        raise LookupError(f"[{first.row}, {first.column}] of {first.table} is not in the saved part")
    begin = max(first.column - COLUMNS_AROUND, 0)
    near = [column for column in offending_columns if first.column <= column < begin + MAX_COLUMNS]
    end = min(max(near) + COLUMNS_AROUND + 1, begin + MAX_COLUMNS, columns)
    values = dump.window(first.table, start + begin, start + end).tolist()
    return tuple(
        Cell(column, value, column in offending_columns)
        for column, value in zip(range(begin, end), values, strict=True)
    )


def _before_containment(cells: tuple[Cell, ...], offences: Sequence[Offence]) -> tuple[Cell, ...]:
    """Return the cells as they were before containment, as far as the dump knows.

    The table was saved with its bad entries replaced by 0; the probe kept what the listed ones held. A translation of
    such a 0 says nothing about the entry.
    """
    held = {offence.column: offence.value for offence in offences}
    return tuple(
        replace(cell, value=held[cell.column], translated=cell.translated or None) if cell.column in held else cell
        for cell in cells
    )


def _with_translation(cells: tuple[Cell, ...], dump: Dump, row: int) -> tuple[Cell, ...]:
    record = dump.record(TRANSLATED)
    if len(record.shape) != 2 or not holds_indices(record) or row >= record.shape[0] or not cells:
        return cells
    begin = row * record.shape[1] + cells[0].column
    known = max(min(record.shape[1] - cells[0].column, len(cells)), 0)
    values = dump.window(TRANSLATED, begin, begin + known).tolist()
    return tuple(replace(cell, translated=value) for cell, value in zip(cells, values, strict=False)) + cells[known:]
