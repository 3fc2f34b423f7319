"""Bursts to rows, and rows against what the load is to show. Imports no torch."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from gemma4_repro.bench.arms import REFERENCE
from gemma4_repro.bench.quantiles import ratio_by_round, spread
from gemma4_repro.bench.targets import MET, MISSED, NOT_MEASURED
from gemma4_repro.serving_bench.client import Burst, median_tpot_s, median_ttft_s
from gemma4_repro.serving_bench.loads import Aim, Shape
from gemma4_repro.serving_bench.measure import Measured
from gemma4_repro.serving_bench.plan import ServingPlan

_SAME_BYTES = 1.001
"""Pools are cut to whole pages."""


def build_rows(plan: ServingPlan, measured: Measured, device: str) -> list[dict[str, Any]]:
    """Return one per model, shape and arm that answered.

    wall_s: of a burst, first request to last token; walls_s: of each round. ttft_ms: the median request's of each
    burst. tokens_per_s: of all prompts and answers over the burst's time; pictures_per_s likewise, None without
    pictures. tpot_ms: the median request's of each burst, None where no answer has two tokens. accepted: tokens per
    verification, None without MTP.
    speedup, ttft_speedup: the reference's over the arm's in the same round, the median over rounds with a 95% bootstrap
    interval; above 1 the arm is faster. better_speedup: likewise of the faster of the load's `better_of`, by the median
    over rounds; None where the load has none, or one of them was not measured. difference: of the answers. same_tokens:
    how many of the tokens compared are the reference's, up to the first other one of an answer, and of how many; None
    without tokens.
    """
    answers = {(one["model"], one["shape"], one["arm"]): one for one in measured.answers}
    rows = []
    for model in plan.models:
        for shape in plan.shapes:
            of = {arm.id: _bursts(measured, model, shape.id, arm.id) for arm in plan.arms}
            better = _better(plan, of)
            for arm, mine in of.items():
                if not mine:
                    continue
                answer = answers.get((model, shape.id, arm), {})
                rows.append(
                    {
                        "model": model,
                        "shape": shape.id,
                        "arm": arm,
                        "device": device,
                        "rounds": len(mine),
                        "wall_s": spread([burst.wall_s for burst in mine]),
                        "walls_s": {str(burst.round): round(burst.wall_s, 5) for burst in mine},
                        "ttft_ms": spread([1000 * median_ttft_s(burst) for burst in mine]),
                        "tokens_per_s": round(statistics.median(burst.tokens / burst.wall_s for burst in mine), 1),
                        "tpot_ms": _tpot_ms(mine),
                        "accepted": _accepted(mine),
                        "pictures_per_s": _pictures_per_s(shape, mine),
                        "speedup": _ratio(of[REFERENCE], mine, lambda burst: burst.wall_s),
                        "ttft_speedup": _ratio(of[REFERENCE], mine, median_ttft_s),
                        "better_speedup": _ratio(better, mine, lambda burst: burst.wall_s) if better else None,
                        "difference": answer.get("difference"),
                        "tolerance": answer.get("tolerance"),
                        "same_tokens": answer.get("same_tokens"),
                    }
                )
    return rows


def wrong_arms(measured: Measured) -> list[dict[str, Any]]:
    return [answer for answer in measured.answers if not answer["right"]]


def judge_targets(
    plan: ServingPlan, rows: Sequence[dict[str, Any]], servers: dict[str, dict[str, dict[str, Any]]]
) -> list[dict[str, Any]]:
    """Return the load's aims; where pools are to have the same bytes, whether they do."""
    targets = [_aim(aim, plan, rows) for aim in plan.load.aims]
    return [*targets, _same_bytes(plan, servers)] if plan.load.equal_bytes else targets


def _aim(aim: Aim, plan: ServingPlan, rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    cells = [(model, shape.id) for model in plan.models for shape in plan.shapes if shape.id in aim.shapes]
    of = {(row["model"], row["shape"]): row[aim.value] for row in rows if row["arm"] == aim.arm}
    found = []
    for model, shape in cells:
        ratio = of.get((model, shape))
        low = None if ratio is None else ratio[aim.end]
        above = aim.above.get(model, 1.0)
        found.append({"model": model, "shape": shape, "low": low, "above": above})
    return _target(aim.id, f"{aim.title} ({aim.arm})", found, lambda cell: cell["low"] > cell["above"])


def _same_bytes(plan: ServingPlan, servers: dict[str, dict[str, dict[str, Any]]]) -> dict[str, Any]:
    found = []
    for model in plan.models:
        told = {arm: state["memory_usage"] for arm, state in servers.get(model, {}).items()}
        for arm in (arm.id for arm in plan.arms if arm.id != REFERENCE):
            cell = {"model": model, "arm": arm, "low": None}
            if arm in told and REFERENCE in told:
                mine, other = told[arm], told[REFERENCE]
                cell |= {"low": mine["kvcache"], "above": other["kvcache"]}
                cell |= {"tokens": mine["token_capacity"], "reference_tokens": other["token_capacity"]}
            found.append(cell)
    title = "the arms' KV pools have no more bytes than the reference's, as the servers say"
    return _target("same-bytes", title, found, lambda cell: cell["low"] <= cell["above"] * _SAME_BYTES)


def _target(id: str, title: str, cells: list[dict[str, Any]], holds: Any) -> dict[str, Any]:
    known = [cell for cell in cells if cell["low"] is not None]
    missed = [cell for cell in known if not holds(cell)]
    status = MISSED if missed else MET if known and len(known) == len(cells) else NOT_MEASURED
    return {"target": id, "title": title, "status": status, "cells": cells, "missed_in": missed}


def _bursts(measured: Measured, model: str, shape: str, arm: str) -> list[Burst]:
    return [burst for burst in measured.bursts if (burst.model, burst.shape, burst.arm) == (model, shape, arm)]


def _better(plan: ServingPlan, of: Mapping[str, Sequence[Burst]]) -> Sequence[Burst]:
    """Bursts of the faster of the load's `better_of`; none if it names none, or one of them has none."""
    found = [of.get(arm, ()) for arm in plan.load.better_of]
    return min(found, key=lambda bursts: statistics.median(b.wall_s for b in bursts)) if found and all(found) else ()


def _pictures_per_s(shape: Shape, bursts: Sequence[Burst]) -> float | None:
    pictures = shape.requests * shape.pictures
    return round(statistics.median(pictures / burst.wall_s for burst in bursts), 2) if pictures else None


def _tpot_ms(bursts: Sequence[Burst]) -> dict[str, Any] | None:
    timed = [1000 * median_tpot_s(burst) for burst in bursts if burst.tpot_s]
    return spread(timed) if timed else None


def _accepted(bursts: Sequence[Burst]) -> float | None:
    known = [burst.accepted for burst in bursts if burst.accepted is not None]
    return round(statistics.mean(known), 3) if known else None


def _ratio(reference: Sequence[Burst], mine: Sequence[Burst], value: Any) -> dict[str, Any] | None:
    ratio = ratio_by_round({b.round: value(b) for b in reference}, {b.round: value(b) for b in mine})
    return None if ratio is None else asdict(ratio)
