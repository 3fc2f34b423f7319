"""What `request-rows` asks of row numbers: each request of a batch has a row of its own still."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gemma4_dumps.structures import Defect, Structure
from gemma4_runtime.checks.request_rows import WrongEntry, check_values
from gemma4_runtime.defects import defect_of
from gemma4_runtime.release.requests import held
from gemma4_runtime.rows.report import NEXT, ROW_INDEX, or_swapped, report_wrong
from gemma4_runtime.rows.seen import seen_of, slot_before


def check_row_numbers(scheduler: Any, batch: Any) -> None:
    """Find rows that are not their requests', and requests that run on without one: the next step allocates by them."""
    rows = getattr(batch, "req_pool_indices", None)
    if rows is None or len(rows) != len(batch.reqs):
        return
    slots = rows.tolist()
    released = [
        number
        for number, request in enumerate(batch.reqs)
        if held(request).req_pool_idx is None and not (request.finished() or request.is_retracted)
    ]
    if released:
        wrong = [WrongEntry("released", number, 0, slots[number]) for number in released]
        kinds = [Defect.STALE] * len(wrong)
        had = is_free(scheduler, wrong[0].value) | left_with_row(scheduler, batch.reqs)
        report_wrong(scheduler, wrong, ROW_INDEX, NEXT, Structure.ROW_INDICES, kinds, None, slots, had=had)
    check_row_indices(scheduler, slots, batch.reqs, NEXT, lengths=getattr(batch, "seq_lens", None))


def check_retracted(
    scheduler: Any,
    rows: Sequence[int],
    requests: Sequence[Any],
    site: str,
    made: Any = None,
    role: str | None = None,
    may_have_ended: bool = True,
) -> None:
    """Find requests that are in a batch without their row, which was given back: retracted ones, and who runs on.

    With `may_have_ended` those that have ended may be left in it.
    """
    if scheduler.enable_overlap:
        return
    gone = [one.is_retracted or not one.finished() or not may_have_ended for one in requests]
    wrong = [
        WrongEntry("released", number, 0, rows[number])
        for number, (request, running) in enumerate(zip(requests, gone, strict=True))
        if running and held(request).req_pool_idx is None
    ]
    if wrong:
        kinds = [Defect.STALE] * len(wrong)
        had = is_free(scheduler, wrong[0].value) | left_with_row(scheduler, requests)
        report_wrong(scheduler, wrong, ROW_INDEX, site, Structure.ROW_INDICES, kinds, made, rows, had=had, role=role)


def is_free(scheduler: Any, row: int) -> dict[str, Any]:
    """Return whether the row that a batch has for a request without one was given back, or is another request's."""
    return {"as_before": None, "row_is_free": row in scheduler.req_to_token_pool.free_slots}


def left_with_row(scheduler: Any, requests: Sequence[Any]) -> dict[str, int]:
    """Return the row of the one request that left a batch unfinished since the forward before, still."""
    stay = {id(request) for request in requests}
    ran = seen_of(scheduler).ran
    if not stay <= set(map(id, ran)):
        return {}
    left = [held(one).req_pool_idx for one in ran if id(one) not in stay and not one.finished()]
    return {"left_with_row": left[0]} if len(left) == 1 and left[0] is not None else {}


def check_row_indices(
    scheduler: Any,
    rows: Sequence[int],
    requests: Sequence[Any],
    site: str,
    made: Any = None,
    role: str | None = "target",
    lengths: Any = None,
) -> None:
    wanted = [held(request).req_pool_idx for request in requests]
    wrong = check_values(rows, wanted)
    if not wrong:
        return
    pool, taken = scheduler.req_to_token_pool, {slot for slot in wanted if slot is not None}
    free = set(pool.free_slots)
    kinds = [defect_of(w.value, w.expected, pool.size + 1, foreign=taken, free=free) for w in wrong]
    kinds = or_swapped(wrong, kinds)
    # Which of the two has changed, the batch's entry or the request's own, is told by where the request was before.
    first = wrong[0].row
    before = slot_before(seen_of(scheduler), requests[first])
    slots = [*wanted[:first], wanted[first] if before is None else before, *wanted[first + 1 :]]
    lengths = getattr(made, "seq_lens", None) if lengths is None else lengths
    had = {"as_before": None, "slot_before": before, "lengths_of": _lengths_go_with(rows, requests, lengths)}
    if any(held(one) is held(requests[first]) for one in requests if one is not requests[first]):
        had["one_record"] = True
    report_wrong(scheduler, wrong, ROW_INDEX, site, Structure.ROW_INDICES, kinds, made, slots, had=had, role=role)


def _lengths_go_with(rows: Sequence[int], requests: Sequence[Any], lengths: Any) -> str | None:
    """Return whether a batch's lengths are in the order of its rows or of its requests; None if that is not told."""
    counted = [held(request).kv_committed_len for request in requests]
    if lengths is None or len(lengths) != len(counted):
        return None
    by_slot = {held(request).req_pool_idx: count for request, count in zip(requests, counted, strict=True)}
    found, of_rows = lengths.tolist(), [by_slot.get(row) for row in rows]
    return {(True, False): "rows", (False, True): "requests"}.get((found == of_rows, found == counted))
