"""The process that measures one model: `python -m gemma4_repro.step_bench.process`, a task of run_process.py on stdin.

Prints one line per result as soon as it is there: what has been measured outlives a crash. Exit codes: 0 all batches or
out of time, 3 without CUDA, 4 after the device was lost.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from gemma4_repro.bench.checkpoint import write_checkpoint
from gemma4_repro.kernel_bench.replay_clock import DeviceLost
from gemma4_repro.marked_lines import tell
from gemma4_repro.step_bench.model_sizes import SIZES
from gemma4_repro.step_bench.plan import StepPlan, plan_from_dict
from gemma4_repro.toys.locate import TARGET_NAME
from gemma4_runtime.versions import gpu, package_versions

# Tokens of each request beyond its context, and of all of them together: what paging rounds up to.
_SPARE_TOKENS = 64


def main() -> int:
    begin = time.monotonic()
    task = json.loads(sys.stdin.read())
    plan, model = plan_from_dict(task["plan"]), task["model"]
    if not torch.cuda.is_available():
        print("torch finds no CUDA device", file=sys.stderr)
        return 3
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    about = {"versions": package_versions(), "gpu": gpu(), "multiprocessors": properties.multi_processor_count}
    tell("about", about)
    # Here, because SGLang's modules do not import without CUDA.
    from gemma4_repro.step_bench.loaded_model import LoadedModel
    from gemma4_repro.step_bench.measure_model import measure_batches, prepare

    with tempfile.TemporaryDirectory() as folder:
        text = SIZES[model].text_config(plan.layers_of(model))
        checkpoint = write_checkpoint(TARGET_NAME, Path(folder) / model, text, {})
        tell("stage", {"model": model, "what": "loads, and captures SGLang's own graphs"})
        loaded = LoadedModel(cuda_arguments(checkpoint, plan))
        try:
            arms = prepare(loaded, plan, model)
            for kind, fields in measure_batches(loaded, arms, plan, model, begin):
                tell(kind, {"model": model} | fields)
        except DeviceLost as error:
            tell("lost", {"model": model, "arm": error.arm, "why": str(error)})
            return 4
    return 0


def cuda_arguments(checkpoint: Path, plan: StepPlan) -> dict[str, Any]:
    """Return SGLang's ServerArgs. Triton's attention takes a head dim of 512 on Hopper; XQA does not."""
    most, tokens = max(plan.batches), plan.context + _SPARE_TOKENS
    return {
        "model_path": str(checkpoint),
        "load_format": "dummy",
        "dtype": "bfloat16",
        "attention_backend": "triton",
        "page_size": 16,
        "context_length": tokens,
        "mem_fraction_static": 0.88,
        "max_total_tokens": (most + 1) * tokens,
        # Both pools hold every token: nothing is evicted between an extend and its one step.
        "swa_full_tokens_ratio": 1.0,
        "max_running_requests": most,
        "cuda_graph_bs": sorted(plan.batches),
        "disable_piecewise_cuda_graph": True,
        "sampling_backend": "pytorch",
        "grammar_backend": "none",
        "random_seed": 0,
    }


if __name__ == "__main__":
    sys.exit(main())
