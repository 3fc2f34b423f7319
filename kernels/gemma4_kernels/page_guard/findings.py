"""What a check found, read from the words of its result."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from gemma4_kernels.page_guard import spec


class Offence(NamedTuple):
    """The first offence of one row of one array: entry `column` of the row held `value`, not in lower..upper - 1.

    In ragged slots `column` counts from the row's first slot. lower: 0 where the null page was legal, else 1 in a table
    and page_size in slots. row_count: offences of this row of this array, this one included.
    """

    array: int
    row: int
    column: int
    value: int
    lower: int
    upper: int
    row_count: int = 1


class Overflow(NamedTuple):
    """A row of an array uses more than there is: of the rows that do, the first of those that need most.

    Attributes:
        column: the first that the array does not have, in ragged slots the first slot behind its last.
        value: columns that the row uses, in ragged slots the end of its range; spec.NO_SIZE_WOULD_DO if no row needs
            too much but this one's range starts below slot 0 or runs backwards. It should have been lower or more, and
            less than upper.
    """

    array: int
    row: int
    column: int
    value: int
    lower: int
    upper: int

    @classmethod
    def of(cls, array: int, row: int, needed: int, columns: int) -> Overflow:
        """Return the overflow of a row that uses `needed` columns of an array of `columns`."""
        return cls(array, row, columns, needed, 0, columns + 1)


class Findings(NamedTuple):
    """All that a check found.

    Attributes:
        offences: by (array, row), the first of each row.
        counts: offences per array.
        overflows: by array, one each.
        rows: rows with an offence or an overflow in any array.
    """

    offences: tuple[Offence, ...]
    counts: tuple[int, ...]
    overflows: tuple[Overflow, ...]
    rows: tuple[int, ...]


def decode(host: torch.Tensor) -> Findings | None:
    """Say what a check found, or None. A clean result costs the read of one word, `host[spec.FOUND]`.

    Args:
        host: int64 words on the host, which the check has finished with. There may be more than the result's.

    Raises:
        ValueError: they are no result.
    """
    if host.device.type != "cpu" or host.dtype != torch.int64 or host.dim() != 1 or host.shape[0] < spec.LANES:
        raise ValueError(
            f"a result is {list(host.shape)} {host.dtype} on {host.device}, expected one dimension of int64 on the "
            f"host, of {spec.LANES} words or more"
        )
    found = host[spec.FOUND].item()
    if found == 0:
        return None
    arrays, rows, splits = host[spec.ARRAYS : spec.ARRAY].tolist()
    shape_is_possible = 1 <= arrays <= spec.MAX_ARRAYS and 1 <= rows <= spec.MAX_ROWS and 1 <= splits <= spec.MAX_SPLITS
    if found != 1 or not shape_is_possible or spec.result_words(arrays, rows * splits) > host.shape[0]:
        raise ValueError(
            f"{host.shape[0]} words, found {found}, {arrays} arrays, {rows} rows, {splits} splits: "
            f"not a page_guard result"
        )
    lanes = host[spec.LANES : spec.result_words(arrays, rows * splits)].view(arrays, rows, splits, spec.LANE_WORDS)
    have = [host[spec.ARRAY + spec.ARRAY_WORDS * array :][: spec.ARRAY_WORDS].tolist() for array in range(arrays)]
    offences = _offences(lanes, [words[spec.BOUND] for words in have])
    overflows, overflowing = _overflows(lanes[:, :, 0, spec.NEEDED], [words[spec.COLUMNS] for words in have])
    if not offences and not overflows:
        raise ValueError("something was found, and no row says what: not a page_guard result")
    return Findings(
        offences=offences,
        counts=tuple(lanes[..., spec.COUNT].sum(dim=(1, 2)).tolist()),
        overflows=overflows,
        rows=tuple(sorted({offence.row for offence in offences} | overflowing)),
    )


def _offences(lanes: torch.Tensor, bounds: Sequence[int]) -> tuple[Offence, ...]:
    counts = lanes[..., spec.COUNT]
    if bool((counts < 0).any()):
        raise ValueError(f"{int(counts.min())} offences in a row: not a page_guard result")
    firsts: dict[tuple[int, int], Offence] = {}
    in_rows = counts.sum(dim=2).tolist()
    for array, row, split in counts.nonzero().tolist():
        _, column, value, lower, _ = lanes[array, row, split].tolist()
        offence = Offence(array, row, column, value, lower, bounds[array], in_rows[array][row])
        if column < 0 or lower < 0 or lower <= value < offence.upper:
            raise ValueError(f"{offence} is none: not a page_guard result")
        other = firsts.get((array, row))
        if other is None or column < other.column:
            firsts[array, row] = offence
    return tuple(firsts[place] for place in sorted(firsts))


def _overflows(needed: torch.Tensor, columns: Sequence[int]) -> tuple[tuple[Overflow, ...], set[int]]:
    """Return the worst of each array, and every row that overflows in any."""
    worst: dict[int, Overflow] = {}
    rows = set()
    for array, row in needed.nonzero().tolist():
        overflow = Overflow.of(array, row, int(needed[array, row]), columns[array])
        if overflow.value < overflow.upper and overflow.value != spec.NO_SIZE_WOULD_DO:
            raise ValueError(f"{overflow} is none: not a page_guard result")
        rows.add(row)
        if array not in worst or overflow.value > worst[array].value:
            worst[array] = overflow
    return tuple(worst[array] for array in sorted(worst)), rows
