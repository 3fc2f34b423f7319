"""One metadata build as plain lists, checked entry by entry in Python integers, and laid out in poisoned memory."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from gemma4_kernels.page_guard.launch import (
    Findings,
    GuardedSlots,
    GuardedTable,
    NullPage,
    Offence,
    Overflow,
    Padding,
)

LOW, HIGH = -(2**31), 2**31 - 1
POISON = HIGH - 7
LAYOUTS = ("contiguous", "columns-apart", "rows-apart", "transposed")
LIMITS = {torch.int32: (LOW, HIGH), torch.int64: (-(2**63), 2**63 - 1)}


@dataclass
class Table:
    values: list[list[int]]
    columns: int
    bound: int
    null_page: NullPage = NullPage.ILLEGAL
    window_keys: int = -1
    dtype: torch.dtype = torch.int32


@dataclass
class Slots:
    """`values` is a list of rows, or flat where there is an indptr."""

    values: list
    columns: int
    bound: int
    null_page: NullPage = NullPage.LEGAL
    indptr: list[int] | None = None
    dtype: torch.dtype = torch.int64
    indptr_type: torch.dtype = torch.int32


@dataclass
class Build:
    arrays: list[Table | Slots]
    lengths: list[int]
    page_size: int = 16
    contain: bool = True
    seq_lens: list[int] | None = None
    fill: int = 0
    layout: str = "contiguous"
    length_type: torch.dtype = torch.int32
    # Where cache_seqlens is not given, `lengths` only says how many rows there are.
    with_lengths: bool = True


def entries_of(build: Build, array: Table | Slots, row: int) -> tuple[list, int]:
    """Say where the row's live entries are, (row, column) or (position,); and what it needs if it overflows, else 0."""
    if isinstance(array, Slots) and array.indptr is not None:
        start, end, have = array.indptr[row], array.indptr[row + 1], len(array.values)
        needed = end if end > have else -1 if start < 0 or end < start else 0
        return [(position,) for position in range(max(start, 0), min(end, have))], needed
    used = array.columns
    if isinstance(array, Table):
        used = max(0, -(-build.lengths[row] // build.page_size))
    return [(row, column) for column in range(min(used, array.columns))], used if used > array.columns else 0


def null_is_legal(build: Build, array: Table | Slots, row: int, column: int) -> bool:
    if isinstance(array, Table) and array.window_keys >= 0:
        left = max(0, build.lengths[row] - array.window_keys) // build.page_size
        if column < left:
            return True
    padded = build.seq_lens is not None and build.seq_lens[row] == build.fill
    return array.null_page is NullPage.LEGAL or (array.null_page is NullPage.LEGAL_IN_PADDED_ROWS and padded)


def slow(build: Build) -> tuple[Findings | None, list]:
    """Say what has to be found, and the arrays afterwards. Every entry is read before any is replaced."""
    offences, counts, overflows, rows, after = [], [], [], set(), []
    for index, array in enumerate(build.arrays):
        flat = isinstance(array, Slots) and array.indptr is not None
        contained = list(array.values) if flat else [list(values) for values in array.values]
        count, worst = 0, None
        for row in range(len(build.lengths)):
            places, needed = entries_of(build, array, row)
            if needed:
                rows.add(row)
                if worst is None or needed > worst.value:
                    worst = Overflow.of(index, row, needed, len(array.values) if flat else array.columns)
            first, in_row = None, 0
            for column, place in enumerate(places):
                value = array.values[place[0]] if flat else array.values[place[0]][place[1]]
                null_entries = 1 if isinstance(array, Table) else build.page_size
                lower = 0 if null_is_legal(build, array, row, column) else null_entries
                if lower <= value < array.bound:
                    continue
                count += 1
                in_row += 1
                first = first or Offence(index, row, column, value, lower, array.bound)
                if build.contain and flat:
                    contained[place[0]] = 0
                elif build.contain:
                    contained[place[0]][place[1]] = 0
            if first:
                offences.append(first._replace(row_count=in_row))
                rows.add(row)
        counts.append(count)
        overflows += [worst] if worst else []
        after.append(contained)
    if not offences and not overflows:
        return None, after
    return Findings(tuple(offences), tuple(counts), tuple(overflows), tuple(sorted(rows))), after


def rows_overlap(build: Build) -> bool:
    for array in build.arrays:
        if isinstance(array, Slots) and array.indptr is not None:
            places = [place for row in range(len(build.lengths)) for place in entries_of(build, array, row)[0]]
            if len(places) != len(set(places)):
                return True
    return False


def lay_out(array: Table | Slots, layout: str, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a view that holds the array, and the whole memory that it is a view of, poisoned everywhere else."""
    if isinstance(array, Slots) and array.indptr is not None:
        return _strided(array.values, array.dtype, 1 if layout == "contiguous" else 3, device)
    rows, columns = len(array.values), array.columns
    shape, step = {
        "contiguous": ((rows, columns), 1),
        "columns-apart": ((rows, 2 * columns), 2),
        "rows-apart": ((rows, columns + 3), 1),
        "transposed": ((columns, rows), 1),
    }[layout]
    memory = torch.full(shape, POISON, dtype=array.dtype, device=device)
    view = memory.T if layout == "transposed" else memory[:, : columns * step : step]
    view.copy_(torch.tensor(array.values, dtype=array.dtype).reshape(rows, columns))
    return view, memory


def _strided(values: list[int], dtype: torch.dtype, step: int, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    memory = torch.full((len(values) * step + 5,), POISON, dtype=dtype, device=device)
    view = memory[2 : 2 + len(values) * step : step]
    view.copy_(torch.tensor(values, dtype=dtype))
    return view, memory


def arguments(build: Build, device: str) -> tuple[dict, list[torch.Tensor], list[torch.Tensor]]:
    """Say what `check` takes, the views that it is given, and the memories around these."""
    views, memories, arrays = [], [], []
    strided = 1 if build.layout == "contiguous" else 2
    for array in build.arrays:
        view, memory = lay_out(array, build.layout, device)
        views.append(view)
        memories.append(memory)
        if isinstance(array, Table):
            arrays.append(GuardedTable(view, array.bound, array.null_page, array.window_keys))
        else:
            indptr = None
            if array.indptr is not None:
                # Longer than the rows need, as a buffer for the largest batch is.
                indptr = _strided([*array.indptr, POISON], array.indptr_type, strided, device)[0]
            arrays.append(GuardedSlots(view, array.bound, array.null_page, indptr))
    padding = None
    if build.seq_lens is not None:
        padding = Padding(_strided(build.seq_lens, torch.int64, strided, device)[0], build.fill)
    lengths = _strided(build.lengths, build.length_type, strided, device)[0] if build.with_lengths else None
    options = {"contain": build.contain, "padding": padding, "rows": len(build.lengths)}
    return {"arrays": arrays, "cache_seqlens": lengths, "page_size": build.page_size} | options, views, memories
