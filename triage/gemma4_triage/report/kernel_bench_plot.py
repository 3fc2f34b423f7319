"""Rows of `bench kernels` as one SVG without outside references: a panel per op and model, a line per arm.

Both axes are logarithmic: tokens, and microseconds per call, the median of rounds. What a copy of as many bytes takes
and what an empty kernel takes are the limits, drawn in black. Arms that compute a part of the op are thin.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gemma4_triage.report.kernel_rows import KernelRows, gather
from gemma4_triage.report.svg_parts import GRID, INK, MUTED, measured_on, svg_document, svg_escape, svg_text

_COLUMNS, _WIDTH, _PANEL_WIDTH, _PANEL_HEIGHT, _TOP, _FOOT = 3, 960, 312, 236, 104, 34
_LEFT, _RIGHT, _HEAD, _BOTTOM = 52, 14, 30, 34
# Colour, stroke width, dashes. Each differs from every other in more than its colour, or lies far from it.
_LINES = {
    "ours": ("#1f7a4d", 3.0, ""),
    "ours-eager": ("#1f7a4d", 1.6, "5 3"),
    "sglang": ("#c25e00", 2.0, ""),
    "vllm": ("#8a3fa0", 2.0, "8 3"),
    "compile": ("#1f5fa8", 2.0, ""),
    "eager": ("#8a8f98", 2.0, ""),
    "flashinfer": ("#c25e00", 1.0, "2 3"),
    "sgl-kernel": ("#1f5fa8", 1.0, "2 3"),
    "copy": (INK, 1.6, "6 4"),
    "empty": (INK, 1.2, "1 4"),
}
_WORDS = {"flashinfer": "flashinfer (a part)", "sgl-kernel": "sgl-kernel (a part)", "copy": "copy of as many bytes"}


def draw_kernels(documents: Sequence[Mapping[str, Any]]) -> str:
    """documents: as `gather` takes them, with the same exceptions."""
    found = gather(documents)
    panels = found.panels
    height = _TOP + _PANEL_HEIGHT * math.ceil(len(panels) / _COLUMNS) + _FOOT
    parts = [*_title(found), *_legend(found.arms)]
    for number, (op, model) in enumerate(panels):
        cells = {tokens: arms for (one, name, tokens), arms in found.cells.items() if (one, name) == (op, model)}
        left, top = 12 + _PANEL_WIDTH * (number % _COLUMNS), _TOP + _PANEL_HEIGHT * (number // _COLUMNS)
        parts += _Panel(left, top, cells).parts(f"{op}, {model}")
    note = "lines: medians; bars: from the 10% to the 90% quantile of rounds; both axes logarithmic"
    parts.append(svg_text(12, height - 12, note, f'fill="{MUTED}"'))
    return svg_document(_WIDTH, height, 11, parts, list(_said(found)))


def _said(found: KernelRows) -> Iterator[str]:
    yield "<title>Time per call of Gemma-4's fused kernels and their rivals</title>"
    panels, arms = "; ".join(f"{op} of {model}" for op, model in found.panels), ", ".join(found.arms)
    yield f"<desc>{svg_escape(panels)}. Arms: {svg_escape(arms)}.</desc>"


def _title(found: KernelRows) -> Iterator[str]:
    title = "Microseconds per call against tokens, under CUDA-graph replay of all layers"
    yield svg_text(12, 24, title, 'font-size="16" font-weight="bold"')
    yield svg_text(12, 44, measured_on(found.documents), f'fill="{MUTED}"')


def _legend(arms: Sequence[str]) -> Iterator[str]:
    x, y = 12, 66
    for arm in arms:
        words = _WORDS.get(arm, arm)
        width = 44 + 7 * len(words)
        if x + width > _WIDTH:
            x, y = 12, y + 18
        yield f'<line x1="{x}" y1="{y - 4}" x2="{x + 26}" y2="{y - 4}" {_stroke(arm)}/>'
        yield svg_text(x + 31, y, words)
        x += width


class _Panel:
    """One op of one model. cells: rows by tokens and arm."""

    def __init__(self, left: int, top: int, cells: Mapping[int, Mapping[str, Mapping[str, Any]]]) -> None:
        self._cells = cells
        self._x0, self._x1 = left + _LEFT, left + _PANEL_WIDTH - _RIGHT
        self._y0, self._y1 = top + _PANEL_HEIGHT - _BOTTOM, top + _HEAD
        times = [row["us"][name] for arms in cells.values() for row in arms.values() for name in ("q10", "q90")]
        self._low, self._high = math.log10(min(times) * 0.9), math.log10(max(times) * 1.1)
        self._few, self._many = math.log2(min(cells)), math.log2(max(cells))

    def parts(self, title: str) -> Iterator[str]:
        yield svg_text(self._x0, self._y1 - 8, title, 'font-size="12" font-weight="bold"')
        yield from self._axes()
        # Ours last, on top of the others.
        for arm in sorted(_LINES, key=lambda arm: arm.startswith("ours")):
            yield from self._line(arm)

    def _x(self, tokens: int) -> float:
        share = (math.log2(tokens) - self._few) / ((self._many - self._few) or 1)
        return round(self._x0 + share * (self._x1 - self._x0), 1)

    def _y(self, us: float) -> float:
        share = (math.log10(us) - self._low) / (self._high - self._low)
        return round(self._y0 - share * (self._y0 - self._y1), 1)

    def _axes(self) -> Iterator[str]:
        for tick in _ticks(self._low, self._high):
            y = self._y(tick)
            yield f'<line x1="{self._x0}" y1="{y}" x2="{self._x1}" y2="{y}" stroke="{GRID}"/>'
            yield svg_text(self._x0 - 6, y + 4, f"{tick:g}", f'text-anchor="end" fill="{MUTED}"')
        for tokens in self._cells:
            x = self._x(tokens)
            yield f'<line x1="{x}" y1="{self._y0}" x2="{x}" y2="{self._y0 + 4}" stroke="{MUTED}"/>'
            yield svg_text(x, self._y0 + 17, str(tokens), f'text-anchor="middle" fill="{MUTED}"')
        yield f'<path d="M{self._x0} {self._y1} V{self._y0} H{self._x1}" fill="none" stroke="{MUTED}"/>'

    def _line(self, arm: str) -> Iterator[str]:
        points = [(self._x(tokens), arms[arm]["us"]) for tokens, arms in sorted(self._cells.items()) if arm in arms]
        if not points:
            return
        path = " L".join(f"{x} {self._y(us['median'])}" for x, us in points)
        yield f'<path d="M{path}" fill="none" stroke-linejoin="round" {_stroke(arm)}/>'
        colour = _LINES[arm][0]
        for x, us in points:
            bar = f'x1="{x}" y1="{self._y(us["q90"])}" x2="{x}" y2="{self._y(us["q10"])}"'
            yield f'<line {bar} stroke="{colour}" stroke-width="1"/>'
            if arm == "ours":
                yield f'<circle cx="{x}" cy="{self._y(us["median"])}" r="3" fill="{colour}"/>'


def _ticks(low: float, high: float) -> list[float]:
    """1, 10, 100 ... within the range, with 2 and 5 between them where it is short."""
    steps = (1, 2, 5) if high - low < 2.2 else (1,)
    decades = range(math.floor(low), math.ceil(high) + 1)
    return [step * 10.0**decade for decade in decades for step in steps if low <= math.log10(step) + decade <= high]


def _stroke(arm: str) -> str:
    colour, width, dashes = _LINES[arm]
    return f'stroke="{colour}" stroke-width="{width:g}"' + (f' stroke-dasharray="{dashes}"' if dashes else "")
