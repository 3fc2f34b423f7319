"""A finished bench as one JSON document: what was measured, on what, how, and against which targets."""

from __future__ import annotations

import os
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gemma4_dumps.store import DumpStore
from gemma4_repro.bench.checkpoint import SIZES, geometry
from gemma4_repro.bench.cores import split_cores
from gemma4_repro.bench.measure import SLOW, Measured
from gemma4_repro.bench.plan import Plan
from gemma4_repro.bench.quantiles import quantile
from gemma4_repro.bench.rows import HOST_DEVICE, build_rows
from gemma4_repro.bench.server_arguments import STEPS_PER_WINDOW
from gemma4_repro.bench.targets import judge_targets
from gemma4_triage.report.bench_origin import portable_command, portable_name

_UNKNOWN_GPU = "unknown GPU"


def bench_document(
    plan: Plan, measured: Measured, installation: dict[str, Any], project: dict[str, str | None], folder: Path
) -> dict[str, Any]:
    """installation: of InstallationQuestion. project: of project_origin. folder: the run's, where dumps are counted."""
    gpu = None if plan.host_engine else installation["gpu"]
    device = HOST_DEVICE if plan.host_engine else (gpu or {}).get("name", _UNKNOWN_GPU)
    rows = build_rows(measured.bursts, device, count_dumps(folder))
    return {
        "measurement": not plan.host_engine,
        "command": portable_command(sys.argv[1:]),
        "project": project,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "device": device,
        "gpu": gpu,
        "versions": installation["versions"],
        "model": "committed toys" if plan.host_engine else geometry(SIZES[plan.size]),
        "method": _method(plan, measured),
        "arms": {arm.id: {"title": arm.title, "environment": dict(arm.environment)} for arm in plan.arms},
        "rows": rows,
        "targets": judge_targets(plan.arms, rows, installation["identity"]),
        "lost": {phase: dict(lost) for phase, lost in measured.lost.items() if lost},
        "partial": measured.partial,
        "run_folder": portable_name(folder),
    }


def count_dumps(folder: Path) -> dict[str, int]:
    """Dumps by arm, over its servers and both MTP settings."""
    found: dict[str, int] = {}
    for store in folder.glob("*/*/dumps"):
        arm = store.parent.name.partition(".")[0]
        found[arm] = found.get(arm, 0) + len(DumpStore(store).list())
    return found


def _method(plan: Plan, measured: Measured) -> dict[str, Any]:
    own, servers = split_cores()
    return {
        "step_ms": "SGLang's own record of decode step times (SGLANG_RECORD_STEP_TIME), by the scheduler's clock; one "
        "value per window of steps; the first window of a burst, which holds the prefill, is left out",
        "steps_per_window": STEPS_PER_WINDOW,
        "decode_tokens_per_s": "batch times tokens per step over the median step time",
        "output_tokens_per_s": "output tokens over the client's wall time of a burst, prefill and HTTP included",
        "step_ratio_to_none": "median over rounds of (an arm's time / that of none in the same round), with a 95% "
        "bootstrap interval over rounds; an arm's time in a round is the mean over its servers of the median window",
        "order": "all servers up at once, one at work at a time; per round and batch the arms in an order drawn anew",
        "slow_arms": f"an arm above {SLOW} times the reference's time gets bursts of {plan.short_tokens} tokens, and "
        f"sits out rounds until it has had {SLOW} times the reference's time in all",
        "probes_us": "GEMMA4_TRIAGE_COST: the probes' own code on the scheduler's thread, kernel launches included, "
        "per decode step; median over bursts. What a launched check takes on the device is in kernels/bench/rows",
        "probes_share": "probes_us of all probes over the median step of none; the targets are of it, because equal "
        "servers may differ by more than they allow, or else of the step itself: the upper end of its ratio's interval "
        "and how far off is from none, added",
        "noise": "off runs the code that none runs: what its ratio differs from 1 by is noise; servers_ms has the "
        "median of each of an arm's equal servers",
        "copies": plan.copies,
        "cores": {"all": os.cpu_count(), "measuring": sorted(own), "servers": sorted(servers)},
        "idle_servers_cores": _idle(measured.idle_cores),
        "rounds": plan.rounds,
        "seed": plan.seed,
        "prompt_tokens": plan.prompt_tokens,
        "new_tokens": plan.new_tokens,
    }


def _idle(cores: list[float]) -> dict[str, float] | None:
    """Cores' worth of CPU time that all idle servers together took while one worked."""
    if not cores:
        return None
    return {"median": round(quantile(cores, 0.5), 4), "q90": round(quantile(cores, 0.9), 4)}
