"""What `request-rows` asks of where requests are: one that runs waits in no queue, and is lost from none.

| why           | what was found                                                                                |
|---------------|-----------------------------------------------------------------------------------------------|
| `waits too`   | a request that has a row is in a batch, or its prompt is read in chunks, and waits all the same |
| `in no queue` | a request that ran as a batch was to be chosen is in none then, and does not wait               |

Which requests there are does not change while a batch is chosen: none comes in, and what ends one says so.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from gemma4_runtime.checks.request_rows import WrongEntry
from gemma4_runtime.release.requests import held
from gemma4_runtime.rows.counts import runs
from gemma4_runtime.rows.report import MISPLACED, NEXT, report_wrong
from gemma4_runtime.rows.seen import seen_of

_QUEUE = "waiting queue"


def note_running(scheduler: Any) -> None:
    """Note, before a batch is chosen, which requests run."""
    batches = (scheduler.running_batch, scheduler.last_batch)
    there = _requests(batches, [getattr(scheduler, "chunked_req", None)])
    seen_of(scheduler).running = {key: one for key, one in there.items() if runs(one) and not _ends(one)}


def check_not_waiting(scheduler: Any, batches: Iterable[Any]) -> None:
    """Find a request that is in one of these batches, or is read in chunks, and waits to be taken into one.

    Args:
        scheduler: Whose requests they are.
        batches: Those that run; None among them is passed over.
    """
    if not _has_one_queue(scheduler) or not scheduler.waiting_queue:
        return
    chunked = getattr(scheduler, "chunked_req", None)
    there = _requests(batches, [chunked])
    found = next((one for one in scheduler.waiting_queue if id(one) in there and runs(one)), None)
    if found is None:
        return
    slot = held(found).req_pool_idx
    ran, waiting = id(found) in seen_of(scheduler).running, len(scheduler.waiting_queue)
    had = {"ran_before": ran, "in_chunks": found is chunked, "waiting": waiting}
    summary = f"the request in slot {slot} runs, and is one of {waiting} that wait"
    _report(scheduler, WrongEntry("waits too", 0, 0, 2, 1), slot, found, had, summary)


def check_none_lost(scheduler: Any, batches: Iterable[Any]) -> None:
    """Find a request that ran before a batch was chosen, goes on, and is nowhere now.

    Args:
        scheduler: Whose requests they are.
        batches: The one that was chosen, and the running one; None among them is passed over.
    """
    running = seen_of(scheduler).running
    if not running or not _has_one_queue(scheduler):
        return
    there = _requests(batches, [getattr(scheduler, "chunked_req", None), *scheduler.waiting_queue])
    # With overlap one that is known to end is left out of its batch, until its result is looked at.
    ending = _requests((batch for batch, _ in getattr(scheduler, "result_queue", None) or ()), [])
    for key, request in running.items():
        awaited = key in ending and not request.is_retracted
        if key in there or awaited or request.finished() or _ends(request):
            continue
        slot = held(request).req_pool_idx
        had = {"retracted": bool(request.is_retracted), "waiting": len(scheduler.waiting_queue)}
        summary = "a request that ran is in no batch, and does not wait"
        _report(scheduler, WrongEntry("in no queue", 0, 0, 0, 1), slot, request, had, summary)
        return


def _has_one_queue(scheduler: Any) -> bool:
    """Return whether who waits is in the one queue alone, one batch runs at a time, and no queue is too long."""
    mode = getattr(getattr(scheduler, "disaggregation_mode", None), "value", "null")
    others = ("enable_hisparse", "dllm_config", "max_queued_requests", "running_mbs")
    return mode == "null" and not any(getattr(scheduler, name, None) for name in others)


def _ends(request: Any) -> bool:
    """Return whether a request is to end, or its answer is one of several that are searched together."""
    names = ("to_finish", "beam_group", "discard_output_reason")
    return any(getattr(request, name, None) is not None for name in names)


def _requests(batches: Iterable[Any], more: Iterable[Any]) -> dict[int, Any]:
    """Return by `id` the requests of some batches, and some more."""
    there = [one for batch in batches if batch is not None for one in batch.reqs or ()]
    return {id(one): one for one in (*there, *more) if one is not None}


def _report(
    scheduler: Any, entry: WrongEntry, slot: int | None, request: Any, had: dict[str, Any], summary: str
) -> None:
    had |= {"as_before": None, "again": request.retraction_count, "answered": len(request.output_ids)}
    report_wrong(scheduler, (entry,), MISPLACED, NEXT, _QUEUE, [None], None, [slot], had=had, summary=summary)
