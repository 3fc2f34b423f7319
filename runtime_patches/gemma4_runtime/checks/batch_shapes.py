"""Check a batch's write locations, rows and speculative state by what the host knows: no device work."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from gemma4_runtime.checks.violation import BadIndex, Violation

MERGE, FILTER = "merge_batch", "filter_batch"


def check_write_rows(rows: int, tokens: int) -> Violation | None:
    """Report write locations that no token of the batch has: they are left from an earlier step.

    Args:
        rows: entries of out_cache_loc.
        tokens: rows of input_ids.

    Returns:
        The violation (value: rows, upper: tokens + 1) or None.
    """
    if rows <= tokens:
        return None
    return Violation("stale_write_rows", (BadIndex(tokens, 0, rows, 0, tokens + 1),), rows - tokens)


def check_row_ends(slots: Sequence[int], allocated: Sequence[int], width: int) -> Violation | None:
    """Report requests that have more slots than a row of req_to_token has columns.

    Args:
        slots: the row of each request.
        allocated: how many KV slots each has.
        width: columns of a row.

    Returns:
        The violation (row: the request's, column: the first that the row lacks, value: allocated, upper: width + 1) or
            None.
    """
    bad = tuple(
        BadIndex(slot, width, have, 0, width + 1) for slot, have in zip(slots, allocated, strict=True) if have > width
    )
    return Violation("row_overflow", bad, len(bad)) if bad else None


def cannot(method: str, state: Any) -> bool:
    """Say whether a batch has a speculative state without this method. No state at all is another thing."""
    return state is not None and not callable(getattr(state, method, None))


def has_draft_inputs(batch: Any) -> bool:
    """Say whether its algorithm keeps a draft input between steps: the EAGLE family, FROZEN_KV_MTP in it."""
    return batch.spec_algorithm is not None and batch.spec_algorithm.is_eagle()


def unfinished(requests: Iterable[Any]) -> list[Any]:
    """Return those that are to be drafted for again."""
    return [request for request in requests if not request.finished()]


def kept_by_filter(batch: Any, chunked_req_to_exclude: Any, keep_indices: list[int] | None) -> list[Any]:
    """Return the requests that `filter_batch` with these arguments keeps."""
    if keep_indices is not None:
        return [batch.reqs[index] for index in keep_indices]
    excluded = chunked_req_to_exclude or ()
    excluded = excluded if isinstance(excluded, (list, tuple)) else (excluded,)
    return [request for request in unfinished(batch.reqs) if request not in excluded]


def stranded(*batches: Any) -> list[Any]:
    """Return those of two batches to be merged with unfinished requests that no draft can start from.

    They have no state, or one of another step.
    """
    return [one for one in batches if (one.spec_info is None or cannot(MERGE, one.spec_info)) and unfinished(one.reqs)]


def merge_can_be_mended(*batches: Any) -> bool:
    """Say whether one of two batches has a state of another step, and nobody is left whom that would concern."""
    return any(cannot(MERGE, one.spec_info) for one in batches) and not stranded(*batches)


def merge_problem(mine: Any, theirs: Any) -> str | None:
    """Say why the speculative states of two batches cannot become one; None if they can, or neither has one."""
    if mine is None and theirs is None:
        return None
    for side, state in (("the batch", mine), ("the batch that joins it", theirs)):
        if state is None:
            return f"{side} has no speculative state and the other one has: its requests would be drafted from nothing"
        if cannot(MERGE, state):
            return f"{side} carries a {type(state).__name__}, which has no merge_batch"
    return None


def filter_problem(state: Any) -> str | None:
    """Say why a batch's speculative state cannot follow when requests leave; None if it can, or there is none."""
    return f"the batch carries a {type(state).__name__}, which has no filter_batch" if cannot(FILTER, state) else None
