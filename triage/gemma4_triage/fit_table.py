"""A table on a terminal: its columns are made to fit between words, and where words do not fit its rows are lists."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

_ANY_WIDTH = 1_000_000


def fit(table: Table, console: Console) -> bool:
    """Give each column its width, and return whether the terminal has room for the longest word of every column.

    A column that is never broken counts as one word. Columns are narrowed from the widest down, none below its words.
    """
    natural = [_measure(console, column.cells, column.no_wrap) for column in table.columns]
    heads = [_measure(console, [column.header], column.no_wrap) for column in table.columns]
    sizes = [
        Measurement(max(a.minimum, b.minimum), min(max(a.maximum, b.maximum), column.max_width or _ANY_WIDTH))
        for column, a, b in zip(table.columns, natural, heads, strict=True)
    ]
    room = console.width - (natural_width(table, console) - sum(size.maximum for size in sizes))
    if sum(size.minimum for size in sizes) > room:
        return False
    level = max((size.maximum for size in sizes), default=0)
    while sum(max(size.minimum, min(size.maximum, level)) for size in sizes) > room:
        level -= 1
    for column, size in zip(table.columns, sizes, strict=True):
        column.width = max(size.minimum, min(size.maximum, level))
    return True


def natural_width(table: Table, console: Console) -> int:
    """Return how wide a table is that breaks no cell."""
    return Measurement.get(console, console.options.update(max_width=_ANY_WIDTH), table).maximum


def _measure(console: Console, cells: Iterable[object], no_wrap: bool | None) -> Measurement:
    texts = [cell if isinstance(cell, Text) else Text(str(cell)) for cell in cells]
    sizes = [Measurement.get(console, console.options.update(max_width=_ANY_WIDTH), text) for text in texts]
    longest = max((size.maximum for size in sizes), default=0)
    return Measurement(longest if no_wrap else max((size.minimum for size in sizes), default=0), longest)


def rows_as_lists(table: Table) -> list[list[tuple[Text, Text]]]:
    """Return of each row its cells that are not empty, each behind its column's head, which may be empty."""
    heads = [Text(str(column.header) if table.show_header else "") for column in table.columns]
    columns = [list(column.cells) for column in table.columns]
    rows = []
    for cells in zip(*columns, strict=True):
        texts = [cell.copy() if isinstance(cell, Text) else Text(str(cell)) for cell in cells]
        rows.append([(head, text) for head, text in zip(heads, texts, strict=True) if text.plain.strip()])
    return rows
