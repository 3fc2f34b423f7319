"""Rows of `bench serving` as one SVG without outside references: a panel per model and shape, a line per arm.

A dot is the time of the server without the plugin over the arm's, the median of rounds, and the bar its bootstrap
interval; right of the line at 1 the arm is faster. The axis is logarithmic: twice as fast is as far from it as half.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gemma4_repro.bench.arms import REFERENCE
from gemma4_triage.report.svg_parts import GRID, MUTED, measured_on, svg_document, svg_escape, svg_text

_WIDTH, _LEFT, _RIGHT, _ROW, _HEAD = 960, 150, 400, 20, 34
_TOP, _FOOT = 62, 44
_TICKS = (0.25, 0.5, 0.75, 1, 1.5, 2, 3, 4, 6, 8)
_FASTER, _SLOWER, _EVEN = "#1f7a4d", "#b3261e", "#8a8f98"

Rows = Sequence[Mapping[str, Any]]


def draw_serving(documents: Sequence[Mapping[str, Any]]) -> str:
    """documents: of one load, one device and the same versions, with a row between them.

    Raises:
        ValueError: no row was compared, one stands twice, or a number is none that a clock can give.
    """
    title = documents[0]["title"]
    panels: dict[str, list[Mapping[str, Any]]] = {}
    for row in (row for document in documents for row in document["rows"]):
        panel = panels.setdefault(f"{row['model']}, {row['shape']}", [])
        if row["arm"] in [other["arm"] for other in panel]:
            raise ValueError(f"{row['arm']} of {row['model']}, {row['shape']} stands twice")
        panel.append(row)
    compared = [row["speedup"] for rows in panels.values() for row in rows if row["speedup"]]
    if not compared:
        raise ValueError("no arm was compared")
    scale, top, parts = _Scale(compared), _TOP, []
    for name, rows in panels.items():
        parts += _panel(name, rows, scale, top)
        top += _HEAD + _ROW * len(rows)
    head = [
        svg_text(12, 24, f"{title[:1].upper()}{title[1:]}", 'font-size="16" font-weight="bold"'),
        svg_text(12, 44, measured_on(documents), f'fill="{MUTED}"'),
    ]
    note = f"dot: time of {REFERENCE} over the arm's, median of rounds; bar: 95% bootstrap interval; logarithmic"
    foot = [svg_text(12, top + 26, note, f'fill="{MUTED}"')]
    said = [f"<title>{svg_escape(title)}</title>", f"<desc>{svg_escape('; '.join(panels))}.</desc>"]
    return svg_document(_WIDTH, top + _FOOT, 12, [*head, *parts, *foot], said)


class _Scale:
    """Ratio to x."""

    def __init__(self, ratios: Sequence[Mapping[str, Any]]) -> None:
        values = []
        for ratio in ratios:
            median = _number(ratio["median"])
            low, high = (median if (end := ratio[name]) is None else _number(end) for name in ("low", "high"))
            if not low <= median <= high:
                raise ValueError("a ratio is outside its interval")
            values += [low, high]
        self.low, self.high = math.log(min(0.9, *values) * 0.95), math.log(max(1.1, *values) * 1.05)

    def __call__(self, ratio: float) -> float:
        share = (math.log(ratio) - self.low) / (self.high - self.low)
        return round(_LEFT + share * (_WIDTH - _LEFT - _RIGHT), 1)

    @property
    def ticks(self) -> list[float]:
        return [tick for tick in _TICKS if self.low <= math.log(tick) <= self.high]


def _panel(title: str, rows: Rows, scale: _Scale, top: int) -> Iterator[str]:
    yield svg_text(12, top + 22, title, 'font-weight="bold"')
    bottom = top + _HEAD + _ROW * len(rows) - 4
    for tick in scale.ticks:
        x, colour = scale(tick), MUTED if tick == 1 else GRID
        yield f'<line x1="{x}" y1="{top + _HEAD - 6}" x2="{x}" y2="{bottom}" stroke="{colour}"/>'
        yield svg_text(x, top + 22, f"x{tick:g}", f'text-anchor="middle" font-size="10" fill="{MUTED}"')
    for position, row in enumerate(rows):
        yield from _arm(row, scale, top + _HEAD + _ROW * position + _ROW // 2)


def _arm(row: Mapping[str, Any], scale: _Scale, y: int) -> Iterator[str]:
    ratio = row["speedup"]
    yield svg_text(24, y + 4, row["arm"])
    if ratio is not None:
        colour = _colour(ratio)
        if ratio["low"] is not None and row["arm"] != REFERENCE:
            bar = f'x1="{scale(ratio["low"])}" y1="{y}" x2="{scale(ratio["high"])}" y2="{y}"'
            yield f'<line {bar} stroke="{colour}" stroke-width="3" stroke-opacity="0.45"/>'
        yield f'<circle cx="{scale(ratio["median"])}" cy="{y}" r="4" fill="{colour}"/>'
    yield svg_text(_WIDTH - _RIGHT + 16, y + 4, _words(row), 'xml:space="preserve"')


def _words(row: Mapping[str, Any]) -> str:
    said = [f"{_number(row['wall_s']['median']):.3f} s"]
    if row["speedup"] is not None and row["arm"] != REFERENCE:
        said.append(f"x{row['speedup']['median']:.2f}")
    said.append(f"TTFT {_number(row['ttft_ms']['median']):.0f} ms")
    # The first rows that were committed have neither of these.
    if row.get("tpot_ms") is not None:
        said.append(f"TPOT {_number(row['tpot_ms']['median']):.2f} ms")
    if row.get("accepted") is not None:
        said.append(f"accepts {_number(row['accepted']):.2f}")
    return "   ".join(said)


def _number(value: float) -> float:
    if not 0 < value < math.inf:
        raise ValueError(f"{value!r} is no time or ratio")
    return value


def _colour(ratio: Mapping[str, Any]) -> str:
    """Grey where the interval holds 1, or is not known."""
    if ratio["low"] is None or ratio["low"] <= 1 <= ratio["high"]:
        return _EVEN
    return _FASTER if ratio["median"] > 1 else _SLOWER
