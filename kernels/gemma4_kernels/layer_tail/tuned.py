"""Tables of measured plans by GPU, `tuned_*.json`, which kernels/bench/bench_layer_tail.py makes."""

from __future__ import annotations

import functools
import json
from pathlib import Path

from gemma4_kernels.layer_tail.spec import MAX_ROWS, TailPlan

FOLDER = Path(__file__).parent


@functools.cache
def tuned_plans(gpu: str, hidden: int, wide: int, inner: int) -> tuple[TailPlan | None, ...] | None:
    """Return the plans of a layer's tail by its number of rows, or None if its size was not measured on that GPU.

    A number of rows that was not measured has the plan of the next larger one that was.

    Args:
        gpu: As CUDA names it.
        hidden: Width of the residual stream.
        wide: Width of the MLP.
        inner: Width of the attention ahead of its output projection.

    Returns:
        Of 0..MAX_ROWS rows, a plan, or None where the ops one by one were faster.
    """
    measured = tables().get(gpu, {}).get((hidden, wide, inner))
    if measured is None:
        return None
    above = [next((size for size in sorted(measured) if size >= rows), None) for rows in range(MAX_ROWS + 1)]
    return tuple(None if size is None or rows == 0 else measured[size] for rows, size in enumerate(above))


@functools.cache
def tables() -> dict[str, dict[tuple[int, int, int], dict[int, TailPlan | None]]]:
    """Return the plans by GPU, (hidden, wide, inner) and number of rows."""
    found = {}
    for file in sorted(FOLDER.glob("tuned_*.json")):
        document = json.loads(file.read_text(encoding="utf-8"))
        found[document["gpu"]["name"]] = {
            (entry["hidden"], entry["wide"], entry["inner"]): {
                int(rows): None if plan is None else TailPlan(*plan) for rows, plan in entry["plans"].items()
            }
            for entry in document["entries"]
        }
    return found
