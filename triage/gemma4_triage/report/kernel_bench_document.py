"""A finished kernel bench as one JSON document: what was measured, on what, how, and against which targets."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gemma4_repro.kernel_bench.plan import ARMS, MODELS, OPS, KernelPlan
from gemma4_repro.kernel_bench.rows import build_rows, cell_of
from gemma4_repro.kernel_bench.run_process import Measured
from gemma4_repro.kernel_bench.targets import judge_targets
from gemma4_triage.report.bench_origin import portable_command

_METHOD = {
    "us": "an arm is a CUDA graph of the op of all layers in a row, each with weights of its own; arms are replayed "
    "one after the other, round by round, in rotating order; a sample is a replay's time (CUDA events) over its calls",
    "sets": "sets of activations that the calls take in turn, so that together they are larger than the L2 cache",
    "moved_bytes": "activations that one call of our kernel reads and writes; the copy reads and writes as many",
    "ratios": "medians over rounds of the quotient of two arms' times in the same round",
    "launches_per_step": "kernels in a profiler's trace of one decode step's calls of this op",
    "compile": "torch.compile, mode max-autotune-no-cudagraphs, dynamic=False: each shape compiled and tuned for "
    "itself before anything is measured, by processes of which one at a time uses the device; captured as others are",
    "answers": "before a cell is timed, our kernel is held against our torch path in both rounding modes",
}


def kernel_bench_document(
    plan: KernelPlan, measured: Measured, project: Mapping[str, str | None], router: Mapping[str, str] | None
) -> dict[str, Any]:
    """Say what `bench kernels` prints and writes.

    Args:
        plan: what was asked for.
        measured: what came back.
        project: of project_origin, from before the run.
        router: of file_identity, from before the run; None without the arm `vllm`.
    """
    gpu = measured.about.get("gpu") or {}
    device = gpu.get("name", "unknown GPU")
    rows = sorted(build_rows(measured.samples, device), key=_place)
    return {
        "command": portable_command(sys.argv[1:]),
        "project": dict(project),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "device": device,
        "gpu": gpu | {name: measured.about.get(name) for name in ("multiprocessors", "l2_bytes")},
        "versions": measured.about.get("versions", {}),
        "method": _METHOD | {"rounds": plan.rounds},
        "models": {model.id: model._asdict() for model in MODELS if model.id in plan.models},
        "arms": {id: title for id, title in ARMS.items() if id in plan.arms},
        "vllm_router": None if router is None else dict(router),
        "cells": {"planned": len(plan.cells()), "measured": len({cell_of(row) for row in rows})},
        "took_s": measured.took_s,
        "compiling": measured.compiling,
        "rows": rows,
        "launches": measured.launches,
        "targets": judge_targets(plan, rows),
        "wrong": measured.wrong,
        "lost": measured.lost,
        "partial": measured.partial,
    }


def file_identity(path: Path) -> dict[str, str]:
    """Say which file it is, wherever it lies. Raises OSError."""
    return {"name": path.name, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}


def _place(row: dict[str, Any]) -> tuple[int, int, int]:
    """Return the place by op, model and size; cells are measured in another order."""
    models = [model.id for model in MODELS]
    return OPS.index(row["op"]), models.index(row["model"]), row["tokens"]
