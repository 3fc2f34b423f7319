"""Samples to rows, and rows against the targets. Imports no torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from gemma4_repro.bench.quantiles import ratio_by_round, spread
from gemma4_repro.bench.targets import MET, MISSED, NOT_MEASURED
from gemma4_repro.step_bench.plan import ALL, ARMS, NONE, SHIPPED, StepPlan
from gemma4_repro.step_bench.run_process import Measured

Cell = tuple[str, int]


def build_rows(plan: StepPlan, measured: Measured, device: str) -> list[dict[str, Any]]:
    """Return one per model, batch and arm that was timed.

    step_us: median, q10, q90 and n of microseconds per step. speedup: the time of `none` over the arm's in the same
    round, its median over rounds with a 95% bootstrap interval; above 1 the arm is faster. kernels: of one step, None
    where they were not counted. answers: of measure.answers.
    """
    times = {(sample["model"], sample["batch"], sample["arm"]): sample["us"] for sample in measured.samples}
    launches = {_place(entry): entry for entry in measured.launches}
    found = {_place(entry): entry for entry in measured.answers}
    rows = []
    for model, batch, arm in sorted(times, key=_order(plan)):
        mine, reference = times[model, batch, arm], times.get((model, batch, NONE))
        ratio = None if reference is None else ratio_by_round(_rounds(reference), _rounds(mine))
        counted = launches.get((model, batch, arm), {})
        answer = found[model, batch, arm]
        rows.append(
            {
                "model": model,
                "layers": plan.layers_of(model),
                "batch": batch,
                "arm": arm,
                "device": device,
                "step_us": spread(mine),
                "speedup": None if ratio is None else asdict(ratio),
                "kernels": counted.get("kernels"),
                "kernels_against_none": counted.get("against_none"),
                "answers": {name: value for name, value in answer.items() if name not in ("model", "batch", "arm")},
            }
        )
    return rows


def wrong_arms(measured: Measured) -> list[dict[str, Any]]:
    """Arms whose answers were not right, which were not timed."""
    return [answer for answer in measured.answers if not answer["right"]]


def judge_targets(plan: StepPlan, rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Say what the plan's arms let one judge: whether all ops together are faster, and whether `none` is as shipped."""
    cells = [(model, batch) for model in plan.models for batch in plan.batches]
    of = {(row["model"], row["batch"], row["arm"]): row for row in rows}
    targets = []
    if ALL in plan.arms:
        lows = {cell: _low(of.get((*cell, ALL))) for cell in cells}
        title = "the step with all ops is faster than without; the lower end of its interval is above 1"
        targets.append(_target("faster", title, lows, lambda low: low > 1))
    if SHIPPED in plan.arms:
        same = {cell: _same_kernels(of.get((*cell, SHIPPED))) for cell in cells}
        title = "without an op in force, the graph has the kernels that SGLang captures without the plugin"
        targets.append(_target("as-shipped", title, same, bool))
    return targets


def _target(id: str, title: str, values: dict[Cell, Any], holds: Any) -> dict[str, Any]:
    known = {cell: value for cell, value in values.items() if value is not None}
    missed = [cell for cell, value in known.items() if not holds(value)]
    status = MISSED if missed else MET if known and len(known) == len(values) else NOT_MEASURED
    worst = min(known, key=lambda cell: known[cell], default=None)
    return {
        "target": id,
        "title": title,
        "status": status,
        "cells": len(values),
        "measured": len(known),
        "missed_in": [{"model": model, "batch": batch} for model, batch in missed],
        "worst": None if worst is None else {"model": worst[0], "batch": worst[1], "value": known[worst]},
    }


def _low(row: dict[str, Any] | None) -> float | None:
    return None if row is None or row["speedup"] is None else row["speedup"]["low"]


def _same_kernels(row: dict[str, Any] | None) -> bool | None:
    return None if row is None or row["kernels_against_none"] is None else not row["kernels_against_none"]


def _place(entry: dict[str, Any]) -> tuple[str, int, str]:
    return entry["model"], entry["batch"], entry["arm"]


def _order(plan: StepPlan) -> Any:
    arms = list(ARMS)
    return lambda place: (plan.models.index(place[0]), place[1], arms.index(place[2]))


def _rounds(us: Sequence[float]) -> dict[int, float]:
    return dict(enumerate(us))
