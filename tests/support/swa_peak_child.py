"""Run inside a fresh process: engines one after the other, each under its loads, and what of the sliding-window pool
they held.

Usage: python swa_peak_child.py SPEC.json RESULT.json, spec: {"arms": [{"engine": {...}, "environment": {...}, "silent":
true if Triton's attention is to say zeros, "loads": [{"prompts": [...], "new_tokens": n}]}]}. The result: per arm and
load {"decoding": the most tokens in use after a decode step, as SGLang counts them, "peak": after any step, "running":
the most requests at once, "retracted": how often, "lengths": of the answers}.
"""

import json
import os
import sys
from pathlib import Path

from engine_child import generate_each


class Watch:
    """An after-hook on the scheduler's `run_batch`. One line per step."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._retracted: dict[str, int] = {}

    def __call__(self, result, scheduler, batch, *args, **kwargs):
        self._retracted |= {req.rid: req.retraction_count for req in batch.reqs}
        line = {
            "mode": batch.forward_mode.name,
            "swa": scheduler.pool_stats_observer.get_pool_stats().swa_num_used,
            "running": len(scheduler.running_batch.reqs),
            "retracted": sum(self._retracted.values()),
        }
        with self._path.open("a") as file:
            file.write(json.dumps(line) + "\n")


def silence_triton() -> None:
    """Its kernels are interpreted on a CPU and take seconds a step. What they say changes no pool."""
    from sglang.srt.layers.attention.triton_backend import TritonAttnBackend

    def attend(backend, q, k, v, layer, forward_batch, **kwargs):
        return q.new_zeros(q.shape[0], layer.tp_q_head_num * layer.v_head_dim)

    TritonAttnBackend.forward_extend = TritonAttnBackend.forward_decode = attend


def seen(steps: list[dict], answers: list[dict]) -> dict:
    return {
        "decoding": max(step["swa"] for step in steps if step["mode"] != "EXTEND"),
        "peak": max(step["swa"] for step in steps),
        "running": max(step["running"] for step in steps),
        "retracted": steps[-1]["retracted"] - steps[0]["retracted"],
        "lengths": [len(answer["output_ids"]) for answer in answers],
    }


def main(spec_path: str, result_path: str) -> None:
    with open(spec_path) as file:
        spec = json.load(file)
    from sglang.srt.entrypoints.engine import Engine
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    from gemma4_runtime.targets import dotted_path

    path = Path(result_path).with_name("steps.jsonl")
    # Workers are forked and inherit both.
    HookRegistry.register(dotted_path("0.5.13.post1", "scheduler.run_batch"), Watch(path), HookType.AFTER)
    results = []
    for arm in spec["arms"]:
        os.environ.update(arm.get("environment", {}))
        if arm.get("silent"):
            silence_triton()
        engine = Engine(**arm["engine"])
        loads = []
        for load in arm["loads"]:
            path.write_text("")
            answers = generate_each(engine, load)
            loads.append(seen([json.loads(line) for line in path.read_text().splitlines()], answers))
        engine.shutdown()
        results.append(loads)
        with open(result_path, "w") as file:
            json.dump(results, file)


if __name__ == "__main__":
    main(*sys.argv[1:])
