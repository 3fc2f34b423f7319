"""A finished step bench as one JSON document: what was measured, on what, how, and against which targets."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from typing import Any

from gemma4_repro.step_bench.model_sizes import SIZES
from gemma4_repro.step_bench.plan import ARMS, MARGIN, MOST_RELATIVE, StepPlan
from gemma4_repro.step_bench.rows import build_rows, judge_targets, wrong_arms
from gemma4_repro.step_bench.run_process import Measured
from gemma4_triage.report.bench_origin import portable_command

SPEEDUP = "the time of none over the arm's in the same round: median over rounds, 95% bootstrap interval"
TOLERANCE = (
    f"{MARGIN:.0f} times what none differs from itself by when every norm's weights move by one or two units in the "
    f"last place of bf16, at most {MOST_RELATIVE}"
)
_METHOD = {
    "step": "SGLang's model runner without a scheduler, in one process per model: an arm is the decode graph that "
    "SGLang captures while the arm's ops are in force; all arms have the same weights, inputs and attention metadata",
    "step_us": "graphs are replayed arm by arm, round by round, in rotating order; a sample is the mean of 5 replays "
    "in a row by CUDA events, after one that is not counted; from token ids to logits, without sampling and host work",
    "speedup": SPEEDUP,
    "kernels": "of one replay in a profiler's trace; against_none: how many more or fewer, by name",
    "answers": "before an arm is timed, its logits are compared with those of none in the same step; "
    "relative_difference is the root mean square difference over the logits' standard deviation",
    "tolerance": f"{TOLERANCE}; an arm beyond it is wrong and not timed",
}


def step_bench_document(plan: StepPlan, measured: Measured, project: dict[str, str | None]) -> dict[str, Any]:
    """Say what `bench step` prints and writes. project: of project_origin."""
    gpu = measured.about.get("gpu") or {}
    device = gpu.get("name", "unknown GPU")
    rows = build_rows(plan, measured, device)
    return {
        "command": portable_command(sys.argv[1:]),
        "project": project,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "device": device,
        "gpu": gpu | {"multiprocessors": measured.about.get("multiprocessors")},
        "versions": measured.about.get("versions", {}),
        "method": _METHOD | {"rounds": plan.rounds, "context_tokens": plan.context},
        "models": {model: _model(model, plan) | measured.models.get(model, {}) for model in plan.models},
        "arms": {id: title for id, title in ARMS.items() if id in plan.arms},
        "rows": rows,
        "targets": judge_targets(plan, rows),
        "wrong": wrong_arms(measured),
        "lost": measured.lost,
        "partial": measured.partial,
    }


def _model(model: str, plan: StepPlan) -> dict[str, Any]:
    text = SIZES[model].text_config(plan.layers_of(model))
    types = text.pop("layer_types")
    return {"full_attention_layers": types.count("full_attention"), "all_layers": SIZES[model].layers} | text
