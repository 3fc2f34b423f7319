"""Tables of plans that were measured faster than cuBLAS, by GPU. `kernels/bench/bench_small_m_linear.py` makes them."""

from __future__ import annotations

import functools
import json
from pathlib import Path

from gemma4_kernels.small_m_linear.spec import MAX_ROWS, Plan

FOLDER = Path(__file__).parent


@functools.cache
def tuned_plans(gpu: str, dtype: str, columns: int, depth: int) -> tuple[Plan | None, ...] | None:
    """Return the plans of a product by its number of rows, or None if it was not measured on that GPU.

    A number of rows that was not measured has the plan of the next larger one that was.

    Args:
        gpu: As CUDA names it.
        dtype: Of the weights, as torch names it, without `torch.`.
        columns: Rows of the weight.
        depth: Columns of the weight.

    Returns:
        Of 0..MAX_ROWS rows, a plan, or None where cuBLAS was faster.
    """
    measured = tables().get((gpu, dtype), {}).get((columns, depth))
    if measured is None:
        return None
    sizes = sorted(measured)
    above = [next((size for size in sizes if size >= rows), None) for rows in range(MAX_ROWS + 1)]
    return tuple(None if size is None or rows == 0 else measured[size] for rows, size in enumerate(above))


@functools.cache
def tables() -> dict[tuple[str, str], dict[tuple[int, int], dict[int, Plan | None]]]:
    """Return the plans by (GPU, dtype), (columns, depth) and number of rows."""
    tables = {}
    for file in sorted(FOLDER.glob("tuned_*.json")):
        document = json.loads(file.read_text(encoding="utf-8"))
        tables[document["gpu"]["name"], document["dtype"]] = {
            (entry["columns"], entry["depth"]): {
                int(rows): None if plan is None else Plan(*plan) for rows, plan in entry["plans"].items()
            }
            for entry in document["entries"]
        }
    return tables
