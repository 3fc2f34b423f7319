"""A row of block characters for a series: its shape on one line of a terminal."""

from __future__ import annotations

from collections.abc import Sequence

_BLOCKS = "▁▂▃▄▅▆▇█"
_GAP = " "


def sparkline(values: Sequence[float | None], width: int, top: float | None = None) -> str:
    """Return at most `width` characters, each the largest of its share of the values; a gap where there are none.

    A full block stands for `top`, by default the largest value.
    """
    count = min(width, len(values))
    cells = [_largest(values[i * len(values) // count : (i + 1) * len(values) // count]) for i in range(count)]
    known = [cell for cell in cells if cell is not None]
    scale = (max(known, default=0) if top is None else top) or 1
    return "".join(_GAP if cell is None else _block(cell / scale) for cell in cells)


def _largest(values: Sequence[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)


def _block(share: float) -> str:
    return _BLOCKS[min(len(_BLOCKS) - 1, int(share * len(_BLOCKS)))]
