"""Samples to rows. Imports no torch."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from gemma4_repro.bench.quantiles import spread

# What an arm is compared with, by round: the quotient is another arm's time over its own.
_AGAINST = {"copy_share": "copy", "speedup_over_sglang": "sglang", "speedup_over_compile": "compile"}


def build_rows(samples: Sequence[dict[str, Any]], device: str) -> list[dict[str, Any]]:
    """Return one per cell and arm.

    us: median, q10, q90 and n of microseconds per call. copy_share: the copy's time over the arm's, which is its share
    of the copy's bandwidth. empty_ratio: the arm's time over an empty kernel's. Ratios are medians over rounds.
    """
    cells: dict[tuple[Any, ...], dict[str, list[float]]] = {}
    for sample in samples:
        cells.setdefault(cell_of(sample), {})[sample["arm"]] = sample["us"]
    rows = []
    for sample in samples:
        arms, mine = cells[cell_of(sample)], sample["us"]
        row = {name: value for name, value in sample.items() if name != "us"} | {"device": device, "us": spread(mine)}
        row |= {name: _ratio(arms.get(arm), mine) for name, arm in _AGAINST.items() if sample["arm"] != arm}
        rows.append(row | {"empty_ratio": _ratio(mine, arms.get("empty"))})
    return rows


def cell_of(sample: dict[str, Any]) -> tuple[str, str, int]:
    """(op, model's id, tokens) of a sample or a row."""
    return sample["op"], sample["model"], sample["tokens"]


def _ratio(above: list[float] | None, below: list[float] | None) -> float | None:
    if not above or not below:
        return None
    return round(statistics.median(a / b for a, b in zip(above, below, strict=False)), 4)
