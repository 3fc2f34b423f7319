"""What page_guard takes, what it leaves in its result buffer, and how it is tested and measured. Imports torch only.

An entry is *live* if its row uses it; everything else is stale or uninitialised and is neither read nor written. A live
entry is an *offence* unless lower <= entry < bound, where bound is the array's and lower is 0 where the null page is
legal, else 1 in a table of pages and page_size in an array of token slots. A row *overflows* if it uses more than the
array has; the part that exists is checked.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

import torch

# A build has the full and the SWA table, and the slots that it writes to in each pool.
MAX_ARRAYS = 4
# Columns per step of a program. One size for every shape, so that no width makes serving wait for a compilation.
BLOCK = 1024
# A row is split over several programs while the launch has fewer than MIN_LANES rows: program s of n takes the blocks
# s, s + n, s + 2 n, ... of the row. So a buffer of a million slots costs no more programs than one of a thousand.
MIN_LANES, MAX_SPLITS = 256, 32
MAX_ROWS = 65535
MAX_BOUND = 2**63 - 1

# The result, int64 words in host memory that the device can address. They are only ever stored to, and only by a
# program that found something: a clean check leaves every word 0, so word FOUND alone says whether there is anything to
# read, and only after a finding does the host zero them again.
#   word FOUND                       0: clean. 1: an offence or an overflow, and the words below describe it
#   word ARRAYS, ROWS, SPLITS        the shape of the launch
#   word ARRAY + 2 * a + COLUMNS     what array a has: columns of a table, slots of a ragged array
#   word ARRAY + 2 * a + BOUND       bound of array a; both only if something was found in a
#   word LANES + 5 * ((a * ROWS + row) * SPLITS + split) + ...
#     COUNT                          offences that this program found
#     COLUMN, VALUE, LOWER           its first one, whole: nothing is packed, an int64 value is exact
#     NEEDED                         split 0 only. 0, or what the overflowing row needs; -1: see NO_SIZE_WOULD_DO
FOUND, ARRAYS, ROWS, SPLITS, ARRAY = 0, 1, 2, 3, 4
COLUMNS, BOUND = 0, 1
ARRAY_WORDS = 2
LANES = ARRAY + ARRAY_WORDS * MAX_ARRAYS
COUNT, COLUMN, VALUE, LOWER, NEEDED = 0, 1, 2, 3, 4
LANE_WORDS = 5
# A range that starts below slot 0 or runs backwards: its indptr is corrupt, however long the buffer is.
NO_SIZE_WOULD_DO = -1


def splits_of(rows: int, columns: int) -> int:
    """Programs per row. `columns`: the most that any array could use in one row."""
    return max(1, min(-(-columns // BLOCK), MAX_SPLITS, MIN_LANES // max(1, rows)))


def result_words(arrays: int, lanes: int) -> int:
    """Words of a result. `lanes`: rows * splits."""
    return LANES + LANE_WORDS * arrays * lanes


class NullPage(IntEnum):
    """Where a live entry may be page 0, the dummy page, or one of its slots."""

    ILLEGAL = 0
    LEGAL = 1
    LEGAL_IN_PADDED_ROWS = 2


class Kind(IntEnum):
    """Where the live entries of a row are. The kernel is compiled per combination."""

    ABSENT = 0
    TABLE = 1
    SLOTS = 2
    RAGGED_SLOTS = 3


class GuardedTable(NamedTuple):
    """A page table and what its entries must satisfy. A row uses ceil(cache_seqlens[row] / page_size) columns.

    Attributes:
        pages: [rows, columns] int32 or int64, any strides.
        bound: entries must be below it, 1..MAX_BOUND.
        window_keys: if 0 or more, page 0 is legal in columns below max(0, cache_seqlens[row] - window_keys) //
            page_size, which the window has left; `null_page` rules the live columns after these.
    """

    pages: torch.Tensor
    bound: int
    null_page: NullPage = NullPage.ILLEGAL
    window_keys: int = -1


class GuardedSlots(NamedTuple):
    """Token slots and what they must satisfy. The null page is slots 0..page_size-1.

    Attributes:
        slots: int32 or int64, any strides: [rows, per_row], every column live, or [n] with `indptr`.
        bound: slots must be below it, 1..MAX_BOUND.
        indptr: [rows + 1 or more] int32 or int64: row r uses slots[indptr[r]:indptr[r + 1]]. It may be corrupt: a range
            is cut to the slots that there are, and a row that is cut, or whose range runs backwards, is an overflow.
    """

    slots: torch.Tensor
    bound: int
    null_page: NullPage = NullPage.LEGAL
    indptr: torch.Tensor | None = None


Guarded = GuardedTable | GuardedSlots


class Padding(NamedTuple):
    """Which rows only pad a graph batch: those with seq_lens[row] == fill.

    Attributes:
        seq_lens: [rows] int32 or int64, any stride. Not always cache_seqlens: verify adds the query's length to those.
    """

    seq_lens: torch.Tensor
    fill: int


class Case(NamedTuple):
    """A size that the tests run. `interpreted`: small enough for the Triton interpreter."""

    name: str
    rows: int
    columns: int
    page_size: int
    interpreted: bool = True


CASES = (
    Case("one-entry", 1, 1, 1),
    Case("one-row", 1, 16, 64),
    Case("toy", 8, 16, 16),
    Case("odd-page", 3, 7, 5),
    Case("block-full", 2, BLOCK, 16),
    Case("block-and-one", 2, BLOCK + 1, 16),
    Case("three-blocks", 2, 2 * BLOCK + 77, 1),
    Case("more-blocks-than-splits", 1, MAX_SPLITS * BLOCK + 1, 1),
    Case("serving", 64, 4096, 64, interpreted=False),
    Case("token-indices", 1, 1_000_003, 1, interpreted=False),
)

# What bench_page_guard.py measures: rows is the batch, columns the live pages of each row.
AXES = {"rows": (1, 4, 16, 64), "columns": (16, 64, 256, 1024, 4096)}


class Tolerance(NamedTuple):
    absolute: float
    reason: str


TOLERANCES = {
    "result": Tolerance(0, "integers, each word written by one program, or by several with the same value"),
    "arrays": Tolerance(0, "an entry is either left as it is or replaced by 0; dead entries are not written at all"),
}
