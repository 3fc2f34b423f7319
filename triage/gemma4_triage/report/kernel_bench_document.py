"""A finished kernel bench as one JSON document: what was measured, on what, how, and against which targets."""

from __future__ import annotations

import shlex
import sys
from datetime import UTC, datetime
from typing import Any

from gemma4_repro.kernel_bench.plan import ARMS, MODELS, OPS, KernelPlan
from gemma4_repro.kernel_bench.rows import build_rows, judge_targets
from gemma4_repro.kernel_bench.run_process import Measured

_METHOD = {
    "us": "an arm is a CUDA graph of the op of all layers in a row, each with weights of its own; arms are replayed "
    "one after the other, round by round, in rotating order; a sample is a replay's time (CUDA events) over its calls",
    "sets": "sets of activations that the calls take in turn, so that together they are larger than the L2 cache",
    "moved_bytes": "activations that one call of our kernel reads and writes; the copy reads and writes as many",
    "ratios": "medians over rounds of the quotient of two arms' times in the same round",
    "launches_per_step": "kernels in a profiler's trace of one decode step's calls of this op",
    "answers": "before a cell is timed, our kernel is held against our torch path in both rounding modes",
}


def kernel_bench_document(plan: KernelPlan, measured: Measured) -> dict[str, Any]:
    """What `bench kernels` prints and writes."""
    gpu = measured.about.get("gpu") or {}
    device = gpu.get("name", "unknown GPU")
    rows = sorted(build_rows(measured.samples, device), key=_place)
    return {
        "command": shlex.join(["gemma4-triage", *sys.argv[1:]]),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "device": device,
        "gpu": gpu | {name: measured.about.get(name) for name in ("multiprocessors", "l2_bytes")},
        "versions": measured.about.get("versions", {}),
        "method": _METHOD | {"rounds": plan.rounds},
        "models": {model.id: model._asdict() for model in MODELS if model.id in plan.models},
        "arms": {id: title for id, title in ARMS.items() if id in plan.arms},
        "rows": rows,
        "launches": measured.launches,
        "targets": judge_targets(plan, rows),
        "wrong": measured.wrong,
        "lost": measured.lost,
        "partial": measured.partial,
    }


def _place(row: dict[str, Any]) -> tuple[int, int, int]:
    """By op, model and size; cells are measured in another order."""
    models = [model.id for model in MODELS]
    return OPS.index(row["op"]), models.index(row["model"]), row["tokens"]
