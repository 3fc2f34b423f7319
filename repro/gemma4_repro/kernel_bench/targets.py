"""The kernels' targets against rows, cell by cell. Imports no torch.

| target           | cells                      | our kernel's                                                         |
|------------------|----------------------------|----------------------------------------------------------------------|
| `copy-bandwidth` | norm ops, 4096 tokens up   | share of an equal-byte copy's bandwidth is at least 0.85             |
| `launch-bound`   | all ops, up to 64 tokens   | time is at most 1.15 times an empty kernel's                         |
| `routing`        | routing, all sizes         | time is below that of the release's kernel                           |
| `peers`          | all                        | time is above no rival's by more than noise: its 10% quantile is not |
|                  |                            | above the rival's 90% quantile. A part of an op is no rival          |
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gemma4_repro.bench.targets import MET, MISSED, NOT_MEASURED
from gemma4_repro.kernel_bench.plan import NORM_OPS, KernelPlan
from gemma4_repro.kernel_bench.rows import cell_of

RIVALS = ("sglang", "vllm", "compile", "eager")
# Without one of these a cell cannot be said to meet `peers`; vLLM's file is not always at hand.
_NEEDED = ("sglang", "compile", "eager")
# The rows of a cell by arm.
CellRows = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Target:
    """concerns: of an op at a token count. value: of a cell, None if it cannot be told. at_most: else at least."""

    id: str
    title: str
    limit: float
    at_most: bool
    concerns: Callable[[str, int], bool]
    value: Callable[[CellRows], float | None]

    def met(self, value: float) -> bool:
        return value <= self.limit if self.at_most else value >= self.limit


def _of_ours(field: str) -> Callable[[CellRows], float | None]:
    return lambda cell: cell.get("ours", {}).get(field)


def rival_excess(cell: CellRows) -> float | None:
    """Return our 10% quantile over a rival's 90% quantile, of the rival for which that is most.

    None if that is at most 1 and a rival is missing.
    """
    if "ours" not in cell:
        return None
    fast = cell["ours"]["us"]["q10"]
    most = max((round(fast / cell[arm]["us"]["q90"], 4) for arm in RIVALS if arm in cell), default=0.0)
    return most if most > 1 or all(arm in cell for arm in _NEEDED) else None


TARGETS = (
    Target(
        "copy-bandwidth",
        "norm ops reach this share of an equal-byte copy's bandwidth from 4096 tokens",
        0.85,
        False,
        lambda op, tokens: op in NORM_OPS and tokens >= 4096,
        _of_ours("copy_share"),
    ),
    Target(
        "launch-bound",
        "at most so many empty kernels up to 64 tokens",
        1.15,
        True,
        lambda op, tokens: tokens <= 64,
        _of_ours("empty_ratio"),
    ),
    Target(
        "routing",
        "faster than the release's kernel",
        1.0,
        False,
        lambda op, tokens: op == "routing",
        _of_ours("speedup_over_sglang"),
    ),
    Target(
        "peers",
        "our 10% quantile over a rival's 90% quantile, of the fastest rival",
        1.0,
        True,
        lambda op, tokens: True,
        rival_excess,
    ),
)


def judge_targets(plan: KernelPlan, rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return one entry per target that the plan's cells touch: its limit, its worst cell, whether it holds in all."""
    planned = [(op, model.id, tokens) for op, model, tokens in plan.cells()]
    found = [judge(target, planned, cells_of(rows)) for target in TARGETS]
    return [entry for entry in found if entry is not None]


def cells_of(rows: Sequence[dict[str, Any]]) -> dict[tuple[str, str, int], dict[str, dict[str, Any]]]:
    """Rows by cell and arm."""
    cells: dict[tuple[str, str, int], dict[str, dict[str, Any]]] = {}
    for row in rows:
        cells.setdefault(cell_of(row), {})[row["arm"]] = row
    return cells


def judge(
    target: Target, planned: Sequence[tuple[str, str, int]], cells: Mapping[tuple[str, str, int], CellRows]
) -> dict[str, Any] | None:
    """Return None if the target concerns none of the planned cells."""
    wanted = [cell for cell in planned if target.concerns(cell[0], cell[2])]
    if not wanted:
        return None
    values = {cell: value for cell in wanted if (value := target.value(cells.get(cell, {}))) is not None}
    entry: dict[str, Any] = {"target": target.id, "title": target.title, "limit": target.limit, "cells": len(wanted)}
    if not values:
        return entry | {"status": NOT_MEASURED, "worst": None, "missed_in": 0, "measured": 0}
    op, model, tokens = cell = (max if target.at_most else min)(values, key=values.__getitem__)
    missed = sum(not target.met(value) for value in values.values())
    worst = {"op": op, "model": model, "tokens": tokens, "value": values[cell]}
    status = MISSED if missed else MET if len(values) == len(wanted) else NOT_MEASURED
    return entry | {"status": status, "worst": worst, "missed_in": missed, "measured": len(values)}
