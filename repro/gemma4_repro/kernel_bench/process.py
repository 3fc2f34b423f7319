"""The process that measures: `python -m gemma4_repro.kernel_bench.process`, a task of run_process.py as JSON on stdin.

Prints one line per result, MARK and a JSON object with its kind, as soon as it is there: what has been measured
outlives a crash. Exit codes: 0 all cells or out of time, 3 without CUDA, 4 after an arm that lost the device.
"""

from __future__ import annotations

import gc
import json
import sys
import time
from pathlib import Path

import torch
import torch._dynamo

from gemma4_repro.kernel_bench.cell import Cell, WrongAnswer, measure
from gemma4_repro.kernel_bench.plan import plan_from_dict
from gemma4_repro.kernel_bench.replay_clock import DeviceLost
from gemma4_repro.marked_lines import tell
from gemma4_runtime.versions import gpu, package_versions

# Of a cell's rounds; setting its arms up comes on top, and compiling can take as long again.
_CELL_LIMIT_S = 5.0


def main() -> int:
    begin = time.monotonic()
    task = json.loads(sys.stdin.read())
    plan, left_out = plan_from_dict(task["plan"]), {tuple(one) for one in task["left_out"]}
    not_compiled = {tuple(one) for one in task["not_compiled"]}
    vllm_file = Path(plan.vllm_router) if plan.vllm_router else None
    if not torch.cuda.is_available():
        print("torch finds no CUDA device", file=sys.stderr)
        return 3
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    about = {"versions": package_versions(), "gpu": gpu(), "multiprocessors": properties.multi_processor_count}
    tell("about", about | {"l2_bytes": properties.L2_cache_size})
    cells, counted = plan.cells(), {tuple(one) for one in task["counted"]}
    for number, (op, model, tokens) in enumerate(cells[task["first"] :], task["first"]):
        if time.monotonic() - begin > plan.limit_s:
            tell("partial", {"why": f"out of time after {number} of {len(cells)} cells"})
            break
        where = {"op": op, "model": model.id, "tokens": tokens}
        tell("cell", where | {"number": number})
        out = {arm for arm in plan.arms if (op, model.id, arm) in left_out}
        if (op, model.id, tokens) in not_compiled:
            out.add("compile")
        arms = tuple(arm for arm in plan.arms if arm not in out)
        try:
            cell = Cell(op, model, tokens, vllm_file=vllm_file)
            for kind, fields in measure(cell, arms, plan.rounds, _CELL_LIMIT_S, (op, model.id) not in counted):
                tell(kind, fields)
            counted.add((op, model.id))
        except WrongAnswer as error:
            tell("wrong", where | {"what": str(error)})
        except torch.cuda.OutOfMemoryError as error:
            tell("lost", where | {"arm": "all", "why": str(error)[:300]})
        except DeviceLost as error:
            tell("device-lost", where | {"arm": error.arm, "why": str(error)})
            return 4
        cell = None
        # Each cell is another shape to torch.compile, and after too many of them it would fall back to eager.
        torch._dynamo.reset()
        gc.collect()
        torch.cuda.empty_cache()
    return 0


if __name__ == "__main__":
    sys.exit(main())
