"""Tables of measured plans by GPU, `tuned_*.json`; `kernels/bench/bench_routed_experts.py` makes them."""

from __future__ import annotations

import functools
from typing import Any

from gemma4_kernels.routed_experts.spec import FOLDER, MAX_ROWS, Plan
from gemma4_kernels.small_m_linear.tuned import by_rows, tables_of


def tables() -> dict[tuple[str, str], dict[tuple[int, ...], dict[int, Any]]]:
    """Return the plans by (GPU, dtype), (hidden, width, experts, top_k) and number of rows."""
    return tables_of("tuned", Plan, FOLDER, ("hidden", "width", "experts", "top_k"))


@functools.cache
def tuned_plans(gpu: str, hidden: int, width: int, experts: int, top_k: int) -> tuple[Plan | None, ...] | None:
    """Return the plans of bf16 experts by number of rows, or None if their size was not measured on that GPU.

    Args:
        gpu: As CUDA names it.
        hidden: Width of the residual stream.
        width: Of an expert.
        experts: How many there are.
        top_k: How many a row chooses.

    Returns:
        Of 0..MAX_ROWS rows, a plan, or None where SGLang's own kernels were as fast.
    """
    return by_rows(tables().get((gpu, "bfloat16"), {}).get((hidden, width, experts, top_k)), MAX_ROWS)
