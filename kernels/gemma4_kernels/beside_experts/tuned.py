"""Tables of measured plans by GPU, `tuned_*.json`; `kernels/bench/bench_beside_experts.py` makes them."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

from gemma4_kernels.beside_experts.spec import FOLDER, MAX_ROWS, Plan
from gemma4_kernels.small_m_linear.tuned import by_rows, tables_of


class Size(NamedTuple):
    """What a table tells layers apart by.

    Attributes:
        hidden: Width of the residual stream.
        dense_width: Of the dense MLP.
        width: Of an expert.
        experts: How many there are.
        top_k: How many a row chooses.
    """

    hidden: int
    dense_width: int
    width: int
    experts: int
    top_k: int


def tables() -> dict[tuple[str, str], dict[tuple[int, ...], dict[int, Any]]]:
    """Return the plans by (GPU, dtype), Size and number of rows."""
    return tables_of("tuned", Plan, FOLDER, Size._fields)


@functools.cache
def tuned_plans(gpu: str, size: Size) -> tuple[Plan | None, ...] | None:
    """Return the plans of bf16 layers by number of rows, or None if their size was not measured on that GPU.

    Args:
        gpu: As CUDA names it.
        size: Of the layer.

    Returns:
        Of 0..MAX_ROWS rows, a plan, or None where the ops one by one were as fast.
    """
    return by_rows(tables().get((gpu, "bfloat16"), {}).get(size), MAX_ROWS)
