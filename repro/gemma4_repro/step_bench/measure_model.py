"""One model: its arms, and every batch of them."""

from __future__ import annotations

import time
from collections.abc import Iterator

import torch

from gemma4_repro.marked_lines import tell
from gemma4_repro.step_bench.in_force import attach, refusals
from gemma4_repro.step_bench.loaded_model import Arm, LoadedModel
from gemma4_repro.step_bench.measure import Result, measure_batch
from gemma4_repro.step_bench.model_sizes import SIZES
from gemma4_repro.step_bench.plan import OPS, SEVERAL, SHIPPED, StepPlan, has
from gemma4_repro.step_bench.weights import DRAWN, redraw


def prepare(loaded: LoadedModel, plan: StepPlan, model: str) -> list[Arm]:
    """Return the arms of this model, captured; one that is not what its name says is told as lost and left out."""
    redraw(loaded.model)
    parameters = sum(parameter.numel() for parameter in loaded.model.parameters())
    tell("model", {"model": model, "parameters": parameters, "weights": DRAWN})
    attach([op for op in OPS if has(op, SIZES[model], plan.layers)], loaded.model, loaded.runner.attn_backend)
    arms = []
    for name in plan.arms_of(model):
        tell("stage", {"model": model, "what": f"captures {name}"})
        ops = plan.ops_of(name, model)
        arm = loaded.shipped if name == SHIPPED else loaded.capture(name, ops)
        # Where several are in force, one op may have taken another's place.
        missing = [op for op in ops if not arm.fused.get(op)] if name not in SEVERAL else []
        if missing:
            why = "; ".join(reason for op in missing for reason in refusals().get(op, ["its hook never ran"]))
            tell("lost", {"model": model, "arm": name, "why": f"not taken: {why}"})
        else:
            arms.append(arm)
    return arms


def measure_batches(loaded: LoadedModel, arms: list[Arm], plan: StepPlan, model: str, begin: float) -> Iterator[Result]:
    """Results of every batch, as far as time goes. Raises DeviceLost."""
    for number, batch in enumerate(plan.batches):
        if time.monotonic() - begin > plan.limit_s:
            yield "partial", {"why": f"out of time after {number} of {len(plan.batches)} batches of {model}"}
            return
        yield "stage", {"what": f"measures batch {batch}"}
        try:
            for kind, fields in measure_batch(loaded, arms, batch, plan.context, plan.rounds, number == 0):
                yield kind, {"batch": batch} | fields
        except torch.cuda.OutOfMemoryError as error:
            yield "lost", {"batch": batch, "arm": "every arm", "why": str(error)[:300]}
