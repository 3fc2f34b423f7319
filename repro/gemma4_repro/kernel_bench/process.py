"""The process that measures: `python -m gemma4_repro.kernel_bench.process`, a plan as JSON on stdin.

Prints one line per result, MARK and a JSON object with its kind, as soon as it is there: what has been measured
outlives a crash. Exit codes: 0 all cells or out of time, 3 without CUDA.
"""

from __future__ import annotations

import gc
import json
import sys
import time
from typing import Any

import torch
import torch._dynamo

from gemma4_repro.kernel_bench.cell import Cell, WrongAnswer, measure
from gemma4_repro.kernel_bench.plan import plan_from_dict
from gemma4_repro.kernel_bench.run_process import MARK
from gemma4_runtime.versions import gpu, package_versions

# Of a cell's rounds; setting its arms up comes on top, and compiling can take as long again.
_CELL_LIMIT_S = 5.0


def main() -> int:
    begin = time.monotonic()
    plan = plan_from_dict(json.loads(sys.stdin.read()))
    if not torch.cuda.is_available():
        print("torch finds no CUDA device", file=sys.stderr)
        return 3
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    about = {"versions": package_versions(), "gpu": gpu(), "multiprocessors": properties.multi_processor_count}
    tell("about", about | {"l2_bytes": properties.L2_cache_size})
    counted = set()
    for done, (op, model, tokens) in enumerate(plan.cells()):
        if time.monotonic() - begin > plan.limit_s:
            tell("partial", {"why": f"out of time after {done} of {len(plan.cells())} cells"})
            break
        tell("cell", {"op": op, "model": model.id, "tokens": tokens})
        try:
            cell = Cell(op, model, tokens)
            for kind, fields in measure(cell, plan.arms, plan.rounds, _CELL_LIMIT_S, (op, model.id) not in counted):
                tell(kind, fields)
            counted.add((op, model.id))
        except WrongAnswer as error:
            tell("wrong", {"op": op, "model": model.id, "tokens": tokens, "what": str(error)})
        except torch.cuda.OutOfMemoryError as error:
            why = str(error)[:300]
            tell("lost", {"op": op, "model": model.id, "tokens": tokens, "arm": "all", "why": why})
        cell = None
        # Each cell is another shape to torch.compile, and after too many of them it would fall back to eager.
        torch._dynamo.reset()
        gc.collect()
        torch.cuda.empty_cache()
    return 0


def tell(kind: str, fields: dict[str, Any]) -> None:
    print(MARK + json.dumps({"kind": kind} | fields), flush=True)


if __name__ == "__main__":
    sys.exit(main())
