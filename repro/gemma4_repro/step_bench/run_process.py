"""Runs process.py, which has torch and SGLang, once per model, and collects what it prints."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from gemma4_repro.bench.server_environment import clean_environment
from gemma4_repro.measuring_process import Ended, Say, run_measuring
from gemma4_repro.step_bench.plan import StepPlan

# SGLang's import, a model of up to 62 GB drawn, and its first graphs with all their kernels compiled.
_SILENCE_S = 300.0
_COMMAND = (sys.executable, "-m", "gemma4_repro.step_bench.process")


@dataclass
class Measured:
    """What came back. about: versions and GPU. partial: why it is not all, or empty."""

    about: dict[str, Any] = field(default_factory=dict)
    models: dict[str, dict[str, Any]] = field(default_factory=dict)
    answers: list[dict[str, Any]] = field(default_factory=list)
    samples: list[dict[str, Any]] = field(default_factory=list)
    launches: list[dict[str, Any]] = field(default_factory=list)
    lost: list[dict[str, Any]] = field(default_factory=list)
    partial: str = ""
    interrupted: bool = False

    def take(self, result: dict[str, Any]) -> None:
        """Add one result of a process."""
        fields = {name: value for name, value in result.items() if name != "kind"}
        kind = result["kind"]
        if kind == "about":
            self.about = fields
        elif kind == "model":
            self.models[fields.pop("model")] = fields
        elif kind == "partial":
            self.partial = fields["why"]
        elif kind in ("answers", "samples", "launches", "lost"):
            getattr(self, kind).append(fields)


def run_plan(
    plan: StepPlan, say: Say, command: Sequence[str] = _COMMAND, inherited: Mapping[str, str] = os.environ
) -> Measured:
    """Measure; progress goes to `say`. Ctrl-C ends it with what there is. A model whose process ends is lost alone.

    Raises:
        EnvironmentLacks: nothing was measured.
    """
    measured, ended, end = Measured(), Ended(), time.monotonic() + plan.limit_s

    def heard(result: dict[str, Any]) -> None:
        measured.take(result)
        if result["kind"] == "stage":
            say(f"{result['model']}: {result['what']}")
        elif result["kind"] == "lost":
            say(f"lost: {result['model']}, {result['arm']}: {result['why']}")

    with tempfile.TemporaryDirectory() as folder:
        # Guard manifests of processes that serve nobody.
        environment = clean_environment(inherited) | {"SGLANG_TRTLLM_MHA_DEBUG_DIR": folder}
        for number, model in enumerate(plan.models):
            left = end - time.monotonic()
            if left <= 0:
                measured.partial = f"out of time after {number} of {len(plan.models)} models"
                break
            task = json.dumps({"plan": replace(plan, limit_s=left).as_dict(), "model": model})
            ended = run_measuring(command, task, left, heard, environment, _SILENCE_S)
            if ended.interrupted:
                measured.interrupted, measured.partial = True, "interrupted"
                break
            if ended.code != 0:
                heard({"kind": "lost", "model": model, "arm": "every arm", "why": ended.why()})
    if not (measured.interrupted or measured.samples or measured.answers):
        raise ended.nothing_measured()
    return measured
