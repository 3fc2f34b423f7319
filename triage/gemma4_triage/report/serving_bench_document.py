"""A finished serving bench as one JSON document: what was measured, on what, how, and against which aims."""

from __future__ import annotations

import sys
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gemma4_repro.bench.arms import BenchArm
from gemma4_repro.bench.rows import HOST_DEVICE
from gemma4_repro.serving_bench.loads import HOST_MODEL
from gemma4_repro.serving_bench.measure import Measured
from gemma4_repro.serving_bench.plan import ACCEPTED, ServingPlan, server_arguments
from gemma4_repro.serving_bench.rows import build_rows, judge_targets, wrong_arms
from gemma4_repro.step_bench.model_sizes import SIZES, gemm_ceiling
from gemma4_triage.report.bench_origin import portable_command, portable_name
from gemma4_triage.report.step_bench_document import SPEEDUP, TOLERANCE

_METHOD = {
    "servers": "one SGLang server per arm, all on one GPU at once, one at work at a time; the same random weights in "
    "each, drawn in the servers; layers, dims and vocabulary are the models' own",
    "order": "per round and shape the arms in an order drawn anew; the prompts of a round are the same for each arm "
    "and new in each round, the prefix cache is flushed before each burst; round 0 is not counted",
    "wall_s": "all requests of a shape at once, each on a connection of its own, by the client's clock: from the first "
    "request to the last token",
    "ttft_ms": "from the burst's start to a request's first token; the median request of each burst",
    "tpot_ms": "from a request's first token to its last, per token after the first; the median request of each burst",
    "accepted": "tokens of an answer after its first, per verification. Drawn weights would have every draft refused, "
    f"so SGLang settles by lot how many are taken, {ACCEPTED} on average (SGLANG_SIMULATE_ACC_LEN); all arms alike",
    "tokens_per_s": "of all prompts and answers, over the burst's time",
    "speedup": SPEEDUP,
    "better_speedup": "likewise of the load's `better_of`, of which the faster arm counts, shape by shape",
    "difference": "before an arm is timed, the log probabilities of tokens spread over the vocabulary, in the first "
    "place of each answer, are compared with those of none: root mean square difference over the standard deviation",
    "encoder": "an encoder's row has no requests: pictures of 2520 patches, 126 of them padding, from host memory "
    "through SGLang's get_image_feature in the scheduler's process, median of 5; values of soft tokens are compared",
    "gemm_ceiling": "what a prefill could gain at most by its matrices if KV-shared layers ran for no row at all",
    "tolerance": TOLERANCE,
}


def serving_bench_document(
    plan: ServingPlan, measured: Measured, installation: dict[str, Any], project: dict[str, str | None], folder: Path
) -> dict[str, Any]:
    """Return what `bench serving` prints and writes.

    Args:
        plan: what was asked for.
        measured: what came back.
        installation: of InstallationQuestion.
        project: of project_origin.
        folder: the run's.
    """
    gpu = None if plan.host_engine else installation["gpu"]
    device = HOST_DEVICE if plan.host_engine else (gpu or {}).get("name", "unknown GPU")
    rows = build_rows(plan, measured, device)
    return {
        "measurement": not plan.host_engine,
        "load": plan.load.id,
        "title": plan.load.title,
        "command": portable_command(sys.argv[1:]),
        "project": project,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "device": device,
        "gpu": gpu,
        "versions": installation["versions"],
        "method": _METHOD | _where(plan) | {"rounds": plan.rounds},
        "models": {model: _model(model, plan) for model in plan.models},
        "better_of": list(plan.load.better_of),
        "shapes": [asdict(shape) for shape in plan.shapes],
        "arguments": server_arguments(plan, Path("checkpoint")),
        "arms": {
            arm.id: {"title": arm.title, "environment": _environment(arm), "arguments": dict(arm.arguments)}
            for arm in plan.arms
        },
        "rows": rows,
        "targets": [] if plan.host_engine else judge_targets(plan, rows, measured.servers),
        "wrong": wrong_arms(measured),
        "servers": measured.servers,
        "lost": {model: dict(lost) for model, lost in measured.lost.items() if lost},
        "partial": measured.partial,
        "run_folder": portable_name(folder),
    }


def _environment(arm: BenchArm) -> dict[str, str]:
    """Return the environment without a path of this machine."""
    return {name: value for name, value in arm.environment.items() if name != "PYTHONPATH"}


def _where(plan: ServingPlan) -> dict[str, Any]:
    """Return what differs where the servers do not share one GPU."""
    if plan.gpus == 1:
        return {}
    shared = f"one SGLang server per arm, in turn on {plan.gpus} GPUs of one host"
    return {"servers": _METHOD["servers"].replace("one SGLang server per arm, all on one GPU at once", shared)}


def _model(model: str, plan: ServingPlan) -> dict[str, Any]:
    if model == HOST_MODEL:
        return {"weights": "committed toy"}
    text = SIZES[model].text_config(plan.layers_of(model))
    types = text.pop("layer_types")
    shared = {"gemm_ceiling": round(gemm_ceiling(SIZES[model]), 3)} if text["num_kv_shared_layers"] else {}
    return {"full_attention_layers": types.count("full_attention"), "weights": "random"} | shared | text
