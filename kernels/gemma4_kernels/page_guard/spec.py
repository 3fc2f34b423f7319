"""What page_guard takes, what it leaves in its result buffer, and how it is tested and measured. Imports torch only.

An entry is *live* if its column is below ceil(cache_seqlens[row] / page_size). A live entry is an *offence* unless
lower <= entry < bound, where bound is the table's and lower is 0 where the null page is legal, else 1.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

import torch

# A route is a table and the buffer that it indexes; a build has the full and the SWA table, each on one or two buffers.
MAX_TABLES = 4
# Columns per program. One size for every shape, so that no width of table makes serving wait for a compilation.
BLOCK = 1024
# The grid's second axis.
MAX_ROWS = 65535
MAX_BOUND = 2**31 - 1
# Positions that fit a first-offence key, see FIRST.
MAX_ENTRIES = 2**31 - 1

# The result buffer, int64. All zero is "no offence", so a memset resets it, whatever was written over it before.
#   word 0                        tables checked (0: there was nothing to check)
#   word 1                        rows checked
#   word TABLE + 4 * t + COUNT    offences in table t
#   word TABLE + 4 * t + FIRST    0, or FIRST_BASE - key of the first offence in (row, column) order, where
#                                 key = (row * columns + column) << 32 | value as uint32
#   word TABLE + 4 * t + COLUMNS  columns of table t, which the key is read with
#   word TABLE + 4 * t + BOUND    bound of table t
#   word FLAGS + row              bit t: the row has an offence in table t
TABLES, ROWS, TABLE = 0, 1, 2
COUNT, FIRST, COLUMNS, BOUND = 0, 1, 2, 3
TABLE_WORDS = 4
FLAGS = TABLE + TABLE_WORDS * MAX_TABLES
FIRST_BASE = 2**63 - 1


class NullPage(IntEnum):
    """Where a live entry may be page 0, the dummy page."""

    ILLEGAL = 0
    LEGAL = 1
    LEGAL_IN_PADDED_ROWS = 2


class GuardedTable(NamedTuple):
    """A table and what its entries must satisfy.

    pages: [rows, columns] int32, any strides. bound: entries must be below it, 1..MAX_BOUND.
    """

    pages: torch.Tensor
    bound: int
    null_page: NullPage = NullPage.ILLEGAL


class Padding(NamedTuple):
    """Which rows only pad a graph batch: those with seq_lens[row] == fill.

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
    Case("serving", 64, 4096, 64, interpreted=False),
    Case("token-indices", 1, 1_000_003, 1, interpreted=False),
)

# What bench_page_guard.py measures: rows is the batch, columns the live pages of each row.
AXES = {"rows": (1, 4, 16, 64), "columns": (16, 64, 256, 1024, 4096)}


class Tolerance(NamedTuple):
    absolute: float
    reason: str


TOLERANCES = {
    "result": Tolerance(0, "integers; sum, minimum and bitwise or give the same whatever the order of the programs"),
    "tables": Tolerance(0, "an entry is either left as it is or replaced by 0; dead entries are not written at all"),
}
