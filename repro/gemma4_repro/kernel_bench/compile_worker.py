"""A process that compiles ahead: `python -m gemma4_repro.kernel_bench.compile_worker`, a task as JSON on stdin.

It fills the folder TORCHINDUCTOR_CACHE_DIR, which the measuring process then loads from. Prints a line per cell, MARK
and a JSON object. The task: device, turn (the file of DeviceTurn) and cells, [op, model's fields, tokens] each.
"""

from __future__ import annotations

import gc
import json
import sys
import time
from pathlib import Path
from typing import Any

import torch

from gemma4_repro.kernel_bench.arms_catalog import arms_of
from gemma4_repro.kernel_bench.compiled import DeviceTurn, compile_once
from gemma4_repro.kernel_bench.plan import ModelShape
from gemma4_repro.kernel_bench.replay_clock import device_answers, first_line
from gemma4_repro.marked_lines import MARK


def main() -> int:
    task = json.loads(sys.stdin.read())
    turn = DeviceTurn(Path(task["turn"]))
    turn.for_autotuning()
    on_device = task["device"] == "cuda"
    for op, fields, tokens in task["cells"]:
        model = ModelShape(*fields)
        begin, result = time.monotonic(), {"op": op, "model": model.id, "tokens": tokens, "why": ""}
        # Broad on purpose: what Inductor cannot compile is one arm of one cell.
        try:
            result["cached"] = compile_once(arms_of(op, model, tokens, task["device"]), turn)
        except Exception as error:
            if on_device and not device_answers():
                raise
            result["why"] = first_line(error)
        _tell(result | {"took_s": round(time.monotonic() - begin, 2)})
        if on_device:
            gc.collect()
            torch.cuda.empty_cache()
    return 0


def _tell(result: dict[str, Any]) -> None:
    print(MARK + json.dumps(result), flush=True)


if __name__ == "__main__":
    sys.exit(main())
