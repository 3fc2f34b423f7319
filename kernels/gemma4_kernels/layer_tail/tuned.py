"""Tables of measured plans by GPU, `tuned_*.json`, which kernels/bench/bench_layer_tail.py makes."""

from __future__ import annotations

import functools
from pathlib import Path

from gemma4_kernels.layer_tail.spec import MAX_ROWS, TailPlan
from gemma4_kernels.small_m_linear.tuned import by_rows, tables_of

FOLDER = Path(__file__).parent


@functools.cache
def tuned_plans(gpu: str, hidden: int, wide: int, inner: int) -> tuple[TailPlan | None, ...] | None:
    """Return the plans of a layer's tail by its number of rows, or None if its size was not measured on that GPU.

    Args:
        gpu: As CUDA names it.
        hidden: Width of the residual stream.
        wide: Width of the MLP.
        inner: Width of the attention ahead of its output projection.

    Returns:
        Of 0..MAX_ROWS rows, a plan, or None where the ops one by one were faster.
    """
    return by_rows(tables().get((gpu, "bfloat16"), {}).get((hidden, wide, inner)), MAX_ROWS)


def tables() -> dict[tuple[str, str], dict[tuple[int, ...], dict[int, TailPlan | None]]]:
    """Return the plans by (GPU, dtype), (hidden, wide, inner) and number of rows."""
    return tables_of("tuned", TailPlan, FOLDER, ("hidden", "wide", "inner"))
