"""Tables of measured plans by GPU: `tuned_*.json` of those faster than cuBLAS, `streamed_*.json` of those faster still.

`kernels/bench/bench_small_m_linear.py` and `kernels/bench/measure_streamed_products.py` make them.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gemma4_kernels.small_m_linear.spec import MAX_ROWS, Plan, StreamedPlan

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
    return by_rows(tables().get((gpu, dtype), {}).get((columns, depth)))


@functools.cache
def streamed_plans(gpu: str, dtype: str, columns: int, depth: int) -> tuple[StreamedPlan | None, ...] | None:
    """Return the plans of streamed.cu by number of rows: those that were faster than `tuned_plans` and than cuBLAS.

    The arguments are those of `tuned_plans`.
    """
    return by_rows(streamed_tables().get((gpu, dtype), {}).get((columns, depth)))


def by_rows(measured: dict[int, Any] | None, most: int = MAX_ROWS) -> tuple[Any, ...] | None:
    """Return the plans of 0 to `most` rows: of a number that was not measured, that of the next larger one."""
    if measured is None:
        return None
    sizes = sorted(measured)
    above = [next((size for size in sizes if size >= rows), None) for rows in range(most + 1)]
    return tuple(None if size is None or rows == 0 else measured[size] for rows, size in enumerate(above))


def tables() -> dict[tuple[str, str], dict[tuple[int, ...], dict[int, Plan | None]]]:
    """Return the plans by (GPU, dtype), (columns, depth) and number of rows."""
    return tables_of("tuned", Plan)


def streamed_tables() -> dict[tuple[str, str], dict[tuple[int, ...], dict[int, StreamedPlan | None]]]:
    """Return the plans of streamed.cu by (GPU, dtype), (columns, depth) and number of rows."""
    return tables_of("streamed", StreamedPlan)


@functools.cache
def tables_of(
    prefix: str, kind: Callable[..., Any], folder: Path = FOLDER, key: tuple[str, ...] = ("columns", "depth")
) -> dict[tuple[str, str], dict[tuple[int, ...], dict[int, Any]]]:
    """Return what the files of a folder say by (GPU, dtype), size and number of rows; `key` names a size's numbers."""
    tables = {}
    for file in sorted(folder.glob(f"{prefix}_*.json")):
        document = json.loads(file.read_text(encoding="utf-8"))
        tables[document["gpu"]["name"], document["dtype"]] = {
            tuple(entry[name] for name in key): {
                int(rows): None if plan is None else kind(*plan) for rows, plan in entry["plans"].items()
            }
            for entry in document["entries"]
        }
    return tables
