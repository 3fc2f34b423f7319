"""Rows of a bench as one SVG without outside references: a panel per MTP setting and batch, a line per arm.

A dot is the median ratio of an arm's decode step time to that of SGLang without the plugin, the bar its bootstrap
interval, on a logarithmic axis, because FlashInfer's logging and a probe's 1% are to fit in one picture; the numbers
stand beside it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from html import escape
from typing import Any

from gemma4_triage.report.bench_view import ratio_text

_WIDTH, _LEFT, _RIGHT, _ROW, _HEAD = 860, 150, 250, 22, 34
_TITLE, _FOOT = 62, 54
_TICKS = (0.9, 1, 1.1, 1.25, 1.5, 2, 3, 5, 10, 20, 50, 100)
_COLOURS = {True: "#2f6f4f", False: "#8a8f98"}
_OURS = ("off", "log", "contain", "trap", "ledger")


def draw(documents: list[dict[str, Any]]) -> str:
    """documents: of one device and the same versions, with at least one row between them."""
    rows = [row for document in documents for row in document["rows"] if row["step_ratio_to_none"]]
    panels: dict[tuple[bool, int], list[dict[str, Any]]] = {}
    for row in sorted(rows, key=lambda row: (row["mtp"], row["batch"])):
        panels.setdefault((row["mtp"], row["batch"]), []).append(row)
    scale = _Scale(rows)
    parts, top = list(_title(documents)), _TITLE
    for (mtp, batch), found in panels.items():
        parts += _panel(f"MTP {'on' if mtp else 'off'}, batch {batch}", found, scale, top)
        top += _HEAD + _ROW * len(found)
    parts += _axis(scale, top)
    height = top + _FOOT
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}"'
    style = ' font-family="sans-serif" font-size="12" fill="#1c1f23">'
    return "\n".join([head + style, f'<rect width="{_WIDTH}" height="{height}" fill="#ffffff"/>', *parts, "</svg>", ""])


class _Scale:
    """Ratio to x, logarithmic."""

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        ratios = [row["step_ratio_to_none"] for row in rows]
        ends = [value for ratio in ratios for value in (ratio["median"], ratio["low"], ratio["high"]) if value]
        self.low, self.high = min(0.95, *ends), max(1.1, *ends) * 1.02

    def __call__(self, ratio: float) -> float:
        share = math.log(ratio / self.low) / math.log(self.high / self.low)
        return round(_LEFT + share * (_WIDTH - _LEFT - _RIGHT), 1)


def _title(documents: list[dict[str, Any]]) -> Iterator[str]:
    first = documents[0]
    versions = ", ".join(f"{name} {first['versions'].get(name, '?')}" for name in ("sglang", "torch", "triton"))
    dates = sorted({document["date"][:10] for document in documents})
    partial = "; partial" if any(document["partial"] for document in documents) else ""
    yield _text(12, 24, "Decode step time against SGLang without the plugin", 'font-size="16" font-weight="bold"')
    yield _text(12, 44, f"{first['device']}; {versions}; {' to '.join(dates)}{partial}", 'fill="#555b63"')


def _panel(title: str, rows: list[dict[str, Any]], scale: _Scale, top: int) -> Iterator[str]:
    reference = next((row["step_ms"]["median"] for row in rows if row["arm"] == "none"), None)
    note = "" if reference is None else f": none takes {reference:.2f} ms"
    yield _text(12, top + 22, title + note, 'font-weight="bold"')
    bottom = top + _HEAD + _ROW * len(rows)
    yield f'<line x1="{scale(1)}" y1="{top + _HEAD - 4}" x2="{scale(1)}" y2="{bottom - 4}" stroke="#1c1f23"/>'
    for position, row in enumerate(rows):
        yield from _arm(row, scale, top + _HEAD + _ROW * position + _ROW // 2)


def _arm(row: dict[str, Any], scale: _Scale, y: int) -> Iterator[str]:
    ratio, colour = row["step_ratio_to_none"], _COLOURS[row["arm"] in _OURS]
    yield _text(24, y + 4, row["arm"], f'fill="{colour}"')
    if ratio["low"] is not None:
        bar = f'x1="{scale(ratio["low"])}" y1="{y}" x2="{scale(ratio["high"])}" y2="{y}"'
        yield f'<line {bar} stroke="{colour}" stroke-width="3" stroke-opacity="0.45"/>'
    yield f'<circle cx="{scale(ratio["median"])}" cy="{y}" r="4" fill="{colour}"/>'
    said = "" if row["arm"] == "none" else ratio_text(ratio)
    yield _text(_WIDTH - _RIGHT + 16, y + 4, f"{row['step_ms']['median']:.2f} ms   {said}", 'xml:space="preserve"')


def _axis(scale: _Scale, top: int) -> Iterator[str]:
    yield f'<line x1="{_LEFT}" y1="{top + 6}" x2="{_WIDTH - _RIGHT}" y2="{top + 6}" stroke="#8a8f98"/>'
    for tick in _TICKS:
        if scale.low <= tick <= scale.high:
            yield _text(scale(tick), top + 24, f"x{tick:g}", 'text-anchor="middle" fill="#555b63"')
    note = "median of per-round ratios, 95% bootstrap interval; step times by SGLang's own clock"
    yield _text(12, top + 44, note, 'fill="#555b63"')


def _text(x: float, y: float, text: str, attributes: str = "") -> str:
    return f'<text x="{x}" y="{y}" {attributes}>{escape(text)}</text>'
