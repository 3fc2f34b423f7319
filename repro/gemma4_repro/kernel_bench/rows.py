"""Samples to rows, and rows against the targets. Imports no torch."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from gemma4_repro.bench.quantiles import spread
from gemma4_repro.bench.targets import MET, MISSED, NOT_MEASURED
from gemma4_repro.kernel_bench.plan import NORM_OPS, KernelPlan

COPY_SHARE, COPY_FROM_TOKENS = 0.85, 4096
EMPTY_RATIO, EMPTY_TO_TOKENS = 1.15, 64
# What an arm is compared with, by round: the quotient is another arm's time over its own.
_AGAINST = {"copy_share": "copy", "speedup_over_sglang": "sglang", "speedup_over_compile": "compile"}


def build_rows(samples: Sequence[dict[str, Any]], device: str) -> list[dict[str, Any]]:
    """One per cell and arm.

    us: median, q10, q90 and n of microseconds per call. copy_share: the copy's time over the arm's, which is its share
    of the copy's bandwidth. empty_ratio: the arm's time over an empty kernel's. Ratios are medians over rounds.
    """
    cells: dict[tuple[Any, ...], dict[str, list[float]]] = {}
    for sample in samples:
        cells.setdefault(_cell(sample), {})[sample["arm"]] = sample["us"]
    rows = []
    for sample in samples:
        arms, mine = cells[_cell(sample)], sample["us"]
        row = {name: value for name, value in sample.items() if name != "us"} | {"device": device, "us": spread(mine)}
        row |= {name: _ratio(arms.get(arm), mine) for name, arm in _AGAINST.items() if sample["arm"] != arm}
        rows.append(row | {"empty_ratio": _ratio(mine, arms.get("empty"))})
    return rows


def _cell(sample: dict[str, Any]) -> tuple[Any, ...]:
    return sample["op"], sample["model"], sample["tokens"]


def _ratio(above: list[float] | None, below: list[float] | None) -> float | None:
    if not above or not below:
        return None
    return round(statistics.median(a / b for a, b in zip(above, below, strict=False)), 4)


def judge_targets(plan: KernelPlan, rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """One entry per target that the plan's cells touch: its limit, its worst cell, whether it holds in every one."""
    cells = plan.cells()
    large = [cell for cell in cells if cell[0] in NORM_OPS and cell[2] >= COPY_FROM_TOKENS]
    small = [cell for cell in cells if cell[2] <= EMPTY_TO_TOKENS]
    routed = [cell for cell in cells if cell[0] == "routing"]
    of_copy = "norm ops reach this share of an equal-byte copy's bandwidth from 4096 tokens"
    of_empty = "at most so many empty kernels up to 64 tokens"
    found = [
        _target("copy-bandwidth", of_copy, COPY_SHARE, "copy_share", large, rows),
        _target("launch-bound", of_empty, EMPTY_RATIO, "empty_ratio", small, rows),
        _target("routing", "faster than the release's kernel", 1.0, "speedup_over_sglang", routed, rows),
    ]
    return [target for target in found if target is not None]


def _target(
    id: str, title: str, limit: float, field: str, cells: Sequence[tuple[Any, ...]], rows: Sequence[dict[str, Any]]
) -> dict[str, Any] | None:
    if not cells:
        return None
    wanted = {(op, model.id, tokens) for op, model, tokens in cells}
    values = {_cell(row): row[field] for row in rows if row["arm"] == "ours" and row.get(field) is not None}
    mine = {cell: values[cell] for cell in wanted if cell in values}
    at_most = field == "empty_ratio"
    entry: dict[str, Any] = {"target": id, "title": title, "limit": limit, "field": field, "cells": len(wanted)}
    if not mine:
        return entry | {"status": NOT_MEASURED, "worst": None, "missed_in": 0, "measured": 0}
    cell = (max if at_most else min)(mine, key=mine.__getitem__)
    missed = [value for value in mine.values() if (value > limit if at_most else value < limit)]
    worst = {"op": cell[0], "model": cell[1], "tokens": cell[2], "value": mine[cell]}
    status = MISSED if missed else MET if len(mine) == len(wanted) else NOT_MEASURED
    return entry | {"status": status, "worst": worst, "missed_in": len(missed), "measured": len(mine)}
