"""Check a batch's write locations and speculative state, from their shapes and types alone: no device work."""

from __future__ import annotations

from typing import Any

from gemma4_runtime.checks.violation import BadIndex, Violation


def check_write_rows(rows: int, tokens: int) -> Violation | None:
    """Report write locations that no token of the batch has: they are left from an earlier step.

    Args:
        rows: entries of out_cache_loc. tokens: rows of input_ids.

    Returns: the violation (value: rows, upper: tokens + 1) or None.
    """
    if rows <= tokens:
        return None
    return Violation("stale_write_rows", (BadIndex(tokens, 0, rows, 0, tokens + 1),), rows - tokens)


def merge_problem(mine: Any, theirs: Any) -> str | None:
    """Why the speculative states of two batches cannot become one; None if they can, or neither has one."""
    if mine is None and theirs is None:
        return None
    for side, state in (("the batch", mine), ("the batch that joins it", theirs)):
        if state is None:
            return f"{side} has no speculative state and the other one has: its requests would be drafted from nothing"
        if not callable(getattr(state, "merge_batch", None)):
            return f"{side} carries a {type(state).__name__}, which has no merge_batch"
    return None


def filter_problem(state: Any) -> str | None:
    """Why a batch's speculative state cannot follow when requests leave; None if it can, or there is none."""
    if state is None or callable(getattr(state, "filter_batch", None)):
        return None
    return f"the batch carries a {type(state).__name__}, which has no filter_batch"
