"""Coordinates of pictures: records to SVG's numbers."""

from __future__ import annotations

from collections.abc import Sequence

from gemma4_triage.report.model.pictures import Series

WIDTH, HEIGHT = 1000, 100
"""Of a chart's viewBox, which is stretched to the space that there is."""
_DOT = 4


def percent(value: float, begin: float, end: float) -> str:
    """Say where `value` lies from begin to end: 0 to 100%."""
    share = (value - begin) / (end - begin) if end > begin else 0.0
    return f"{round(100 * min(max(share, 0.0), 1.0), 2):g}%"


def share(part: float, whole: float) -> str:
    """Return a visible width."""
    return percent(max(part, whole / 200) if part > 0 else 0.0, 0.0, whole)


def lines(series: Series, top: float) -> list[str]:
    """Return a polyline for each stretch without a gap; of a lone point a short line."""
    found, stretch = [], []
    for at, value in enumerate([*series.values, None]):
        if value is not None:
            stretch.append((_x(at, len(series.values)), _y(value, top)))
            continue
        if len(stretch) == 1:
            x, y = stretch[0]
            stretch = [(max(x - _DOT, 0.0), y), (min(x + _DOT, float(WIDTH)), y)]
        if stretch:
            found.append(" ".join(f"{x:g},{y:g}" for x, y in stretch))
        stretch = []
    return found


def gaps(columns: Sequence[int]) -> list[bool]:
    """Say of ascending numbers which have a gap before them."""
    return [at > 0 and number != columns[at - 1] + 1 for at, number in enumerate(columns)]


def _x(at: int, count: int) -> float:
    return round(WIDTH * at / max(count - 1, 1), 1)


def _y(value: float, top: float) -> float:
    return round(HEIGHT * (1 - min(max(value / top, 0.0), 1.0)), 1)
