"""Rows of a bench as one SVG without outside references: a panel per MTP setting and batch, a line per arm.

A dot is an arm's decode step against that of SGLang without the plugin (median of rounds), the bar its bootstrap
interval; two equal servers differ too. A diamond is the time that the probes' own code takes of a step, and a red tick
the arm's target for it. The axis is logarithmic in what is added, because a probe's 1% and a log that takes ten times
as long are to fit in one picture; what is below 0.1%, or nothing, lies at its left end.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from gemma4_repro.bench.arms import ARMS
from gemma4_triage.report.bench_view import ratio_text, share_text
from gemma4_triage.report.svg_parts import GRID, MUTED, measured_on, svg_document, svg_text

_WIDTH, _LEFT, _RIGHT, _ROW, _HEAD = 960, 150, 350, 22, 34
_TITLE, _FOOT = 62, 70
_FLOOR = 0.001
_TICKS = {0.001: "0.1% or less", 0.01: "1%", 0.1: "10%", 1.0: "100%", 10.0: "1000%", 100.0: "10000%"}
_LIMITS = {arm.id: arm.share_limit for arm in ARMS if arm.share_limit is not None}
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
    return svg_document(_WIDTH, height, 12, parts)


class _Scale:
    """Ratio to x, logarithmic in ratio - 1."""

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        ratios = [row["step_ratio_to_none"] for row in rows]
        self.high = max(0.1, *(max(ratio["median"], ratio["high"] or 0) - 1 for ratio in ratios)) * 1.1

    def __call__(self, ratio: float) -> float:
        share = math.log(max(_FLOOR, ratio - 1) / _FLOOR) / math.log(self.high / _FLOOR)
        return round(_LEFT + share * (_WIDTH - _LEFT - _RIGHT), 1)


def _title(documents: list[dict[str, Any]]) -> Iterator[str]:
    yield svg_text(
        12, 24, "What each arm adds to a decode step of SGLang without the plugin", 'font-size="16" font-weight="bold"'
    )
    yield svg_text(12, 44, measured_on(documents), f'fill="{MUTED}"')


def _panel(title: str, rows: list[dict[str, Any]], scale: _Scale, top: int) -> Iterator[str]:
    reference = next((row["step_ms"]["median"] for row in rows if row["arm"] == "none"), None)
    note = "" if reference is None else f": none takes {reference:.2f} ms"
    yield svg_text(12, top + 22, title + note, 'font-weight="bold"')
    bottom = top + _HEAD + _ROW * len(rows)
    for tick in _ticks(scale):
        x = scale(1 + tick)
        yield f'<line x1="{x}" y1="{top + _HEAD - 4}" x2="{x}" y2="{bottom - 4}" stroke="{GRID}"/>'
    for position, row in enumerate(rows):
        yield from _arm(row, scale, top + _HEAD + _ROW * position + _ROW // 2)


def _arm(row: dict[str, Any], scale: _Scale, y: int) -> Iterator[str]:
    ratio, colour = row["step_ratio_to_none"], _COLOURS[row["arm"] in _OURS]
    yield svg_text(24, y + 4, row["arm"], f'fill="{colour}"')
    if ratio["low"] is not None:
        bar = f'x1="{scale(ratio["low"])}" y1="{y}" x2="{scale(ratio["high"])}" y2="{y}"'
        yield f'<line {bar} stroke="{colour}" stroke-width="3" stroke-opacity="0.45"/>'
    if limit := _LIMITS.get(row["arm"]):
        x = scale(1 + limit)
        yield f'<line x1="{x}" y1="{y - 8}" x2="{x}" y2="{y + 8}" stroke="#b3261e" stroke-width="2"/>'
    yield f'<circle cx="{scale(ratio["median"])}" cy="{y}" r="4" fill="{colour}"/>'
    said = "" if row["arm"] == "none" else ratio_text(ratio)
    if (share := row["probes_share"]) is not None:
        x, said = scale(1 + share), f"{said}   probes {share_text(share)}"
        yield f'<path d="M{x - 5} {y} L{x} {y - 5} L{x + 5} {y} L{x} {y + 5} Z" fill="#ffffff" stroke="{colour}"/>'
    yield svg_text(_WIDTH - _RIGHT + 16, y + 4, f"{row['step_ms']['median']:.2f} ms   {said}", 'xml:space="preserve"')


def _axis(scale: _Scale, top: int) -> Iterator[str]:
    for tick in _ticks(scale):
        yield svg_text(scale(1 + tick), top + 14, _TICKS[tick], f'text-anchor="middle" fill="{MUTED}"')
    note = "dot: decode step against none, by SGLang's own clock, median of rounds, 95% bootstrap interval"
    yield svg_text(12, top + 56, "diamond: the probes' own code, of a step of none; red: target", f'fill="{MUTED}"')
    yield svg_text(12, top + 40, note, f'fill="{MUTED}"')


def _ticks(scale: _Scale) -> list[float]:
    return [tick for tick in _TICKS if tick <= scale.high]
