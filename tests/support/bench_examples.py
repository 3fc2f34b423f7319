"""Made-up measurements of the benches, and the documents that are made of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gemma4_repro.bench.arms import ARMS
from gemma4_repro.bench.burst import Burst
from gemma4_repro.bench.measure import Measured as ProbesMeasured
from gemma4_repro.bench.plan import CUDA_SIZES, Plan
from gemma4_repro.kernel_bench.plan import KernelPlan
from gemma4_repro.kernel_bench.run_process import Measured as KernelsMeasured
from gemma4_repro.serving_bench.agree import answer_record
from gemma4_repro.serving_bench.client import Burst as ServingBurst
from gemma4_repro.serving_bench.measure import Measured as ServingMeasured
from gemma4_repro.serving_bench.plan import ServingPlan
from gemma4_repro.step_bench.plan import StepPlan
from gemma4_repro.step_bench.run_process import Measured as StepMeasured
from gemma4_triage.report.bench_document import bench_document

INSTALLATION = {
    "versions": {"python": "3.12.3", "sglang": "0.5.13.post1", "torch": "2.11.0", "triton": "3.6.0"},
    "gpu": {"name": "NVIDIA H200", "capability": "9.0"},
    "identity": {"compared": 38, "changed": [], "plugin_loaded": True},
}
ABOUT = {
    "versions": {"sglang": "0.5.13.post1", "torch": "2.11.0", "triton": "3.6.0"},
    "gpu": {"name": "NVIDIA H200", "capability": "9.0"},
    "multiprocessors": 132,
    "l2_bytes": 52428800,
}
PROJECT: dict[str, str | None] = {"version": "0.1.0", "commit": "1a2b3c4-dirty", "commit_from": "git"}
FACTORS = {"contain": 1.004, "ledger": 1.01, "flashinfer-5": 22.0}
HOOKS_US = {"contain": {"page-table.build": 8.0, "page-table.step": 1.0}, "ledger": {"leak-ledger.alloc": 30.0}}
KERNEL_US = {"ours": 1.0, "sglang": 3.0, "compile": 1.1, "eager": 9.0, "copy": 0.9, "empty": 0.95}
_STEP_ANSWER = {"relative_difference": 0.01, "max_abs_difference": 0.1, "same_tokens": 1.0, "logits_std": 1.0}


def probes_document(
    folder: Path,
    *,
    arms: Any = ARMS,
    host_engine: bool = False,
    factors: dict[str, float] = FACTORS,
    hooks_us: dict[str, dict[str, float]] = HOOKS_US,
    installation: dict[str, Any] = INSTALLATION,
    partial: str = "",
) -> dict[str, Any]:
    """Return the document of `bench probes`. factors: of a step's time, per arm; 1 for those that are not named."""
    lengths: Any = CUDA_SIZES
    plan = Plan(arms, (1, 64), (False, True), 5, host_engine, 540, **lengths)
    cells = [(mtp, batch, number) for mtp in plan.mtp for batch in plan.batches for number in range(1, 6)]
    bursts = [
        Burst(
            arm.id,
            1,
            mtp,
            batch,
            number,
            144,
            (2.0 * factors.get(arm.id, 1.0),) * 6,
            400.0,
            1.0,
            0.4,
            hooks_us.get(arm.id, {}),
        )
        for mtp, batch, number in cells
        for arm in arms
    ]
    measured = ProbesMeasured(bursts, {"mtp off": {}, "mtp on": {}}, partial, [0.01, 0.02])
    return bench_document(plan, measured, installation, PROJECT, folder)


def kernels_measured(plan: KernelPlan, us: dict[str, float] = KERNEL_US, **changes: Any) -> KernelsMeasured:
    """Return what `bench kernels` measured. us: of each arm, in every cell."""
    samples = [
        {"op": op, "model": model.id, "tokens": tokens, "arm": arm, "us": [took] * 5, "calls": 30, "sets": 2}
        for op, model, tokens in plan.cells()
        for arm, took in us.items()
    ]
    launches = [{"op": "routing", "model": "26b", "tokens": 1, "arm": "ours", "launches_per_step": 30}]
    compiling = {"compiled": 131, "of": 132, "cached": 0, "workers": 14, "took_s": 20.0}
    return KernelsMeasured(about=ABOUT, samples=samples, launches=launches, compiling=compiling, took_s=61.0, **changes)


def step_measured(plan: StepPlan, us: float, right: bool = True, **changes: Any) -> StepMeasured:
    """Return what `bench step` measured. us: of the arm `all`; others take 100."""
    cells = [(model, batch, arm) for model in plan.models for batch in plan.batches for arm in plan.arms_of(model)]
    where = [{"model": model, "batch": batch, "arm": arm} for model, batch, arm in cells]
    answer = _STEP_ANSWER | {"bit_equal": False, "tolerance": 0.05, "right": right}
    return StepMeasured(
        about=ABOUT,
        models={model: {"parameters": 7, "weights": "drawn"} for model in plan.models},
        answers=[one | answer for one in where],
        samples=[one | {"us": [us if one["arm"] == "all" else 100.0] * 5} for one in where] if right else [],
        launches=[one | {"kernels": 900, "against_none": {}} for one in where],
        **changes,
    )


def serving_measured(
    plan: ServingPlan, times: dict[str, float], kvcache: float = 1.5, right: bool = True
) -> ServingMeasured:
    """Return what `bench serving` measured.

    Args:
        plan: What was asked for.
        times: Seconds of an arm's bursts; 1 for those that are not named. First tokens come at half of them.
        kvcache: GiB of the arm owner-only-kv; others have 1.5.
        right: Whether the answers agree.
    """
    found = ServingMeasured()
    for model in plan.models:
        for arm in plan.arms:
            seconds = times.get(arm.id, 1.0)
            for shape in plan.shapes:
                wall = [(number, seconds * (1 + number / 100)) for number in range(1, plan.rounds + 1)]
                found.bursts += [ServingBurst(model, shape.id, arm.id, n, s, (s / 2,), 1000) for n, s in wall]
                found.answers.append(answer_record(model, shape.id, arm.id, 0.01 if right else 0.9, 0.05))
        memory: dict[str, dict[str, Any]] = {arm.id: {"kvcache": 1.5, "token_capacity": 100} for arm in plan.arms}
        memory["owner-only-kv"] = {"kvcache": kvcache, "token_capacity": 233}
        found.servers[model] = {arm: {"memory_usage": usage} for arm, usage in memory.items()}
    return found
