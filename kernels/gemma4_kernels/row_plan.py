"""How rows are spread over programs and threads: a fixed table by width and row count, no measurement at run time."""

from __future__ import annotations

import functools
from typing import NamedTuple

MAX_WIDTH = 16384
# Rows that four programs on each of 132 SMs have at once. With fewer, an op that has several weights loads them before
# its first sum, so that their latency passes with the rows' own. With more, each weight where it is used: weights that
# wait in registers leave room for fewer rows under way.
EARLY_BELOW = 528
# Two programs of one warp for each of 132 SMs, and more than that in a tile.
_TILED_FROM = 1024


class RowPlan(NamedTuple):
    """block: columns, a power of two, all of them in registers."""

    block: int
    num_warps: int


def plan_rows(width: int, rows: int) -> RowPlan:
    """Plan rows of `width` elements.

    A thread has 16 elements while rows are few and each is waited for; 32 from there on, where fewer warps meet at each
    barrier. There are 8 warps at most.
    """
    return _plan_rows(width, rows < EARLY_BELOW)


@functools.lru_cache(maxsize=128)
def _plan_rows(width: int, few: bool) -> RowPlan:
    block = max(32, 1 << (width - 1).bit_length())
    return RowPlan(block, min(8, max(1, block // (512 if few else 1024))))


class TilePlan(NamedTuple):
    """block: columns, a power of two. tile: rows per program, a power of two."""

    block: int
    tile: int
    num_warps: int


def plan_tiles(width: int, rows: int, elements: int) -> TilePlan:
    """Plan short rows, several to a program once there are enough for all SMs: as many as make `elements`."""
    return _plan_tiles(width, elements if rows >= _TILED_FROM else 1)


@functools.lru_cache(maxsize=64)
def _plan_tiles(width: int, elements: int) -> TilePlan:
    block, num_warps = _plan_rows(width, True)
    tile = max(1, elements // block)
    # A warp for each row at least: a row's sum then stays in a warp.
    return TilePlan(block, tile, max(num_warps, min(4, tile)))
