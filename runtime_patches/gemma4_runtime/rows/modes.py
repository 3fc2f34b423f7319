"""What `request-rows` asks of a batch behind its forward: it has the forward mode still that it was run with."""

from __future__ import annotations

from typing import Any

from gemma4_runtime.checks.request_rows import WrongEntry
from gemma4_runtime.release.requests import held
from gemma4_runtime.rows.report import MODE, RUN, report_wrong
from gemma4_runtime.rows.seen import seen_of

_MODE = "forward mode"


def note_mode(scheduler: Any, batch: Any) -> None:
    """Note, before `Scheduler.run_batch`, the forward mode of its batch."""
    seen_of(scheduler).mode = getattr(batch, "forward_mode", None)


def check_mode(scheduler: Any, batch: Any) -> None:
    """Find a batch that has another mode behind its forward: SGLang chooses by the mode who processes the result.

    A speculative worker sets modes of its own while it drafts and verifies, and takes them back.

    Args:
        scheduler: Whose batch it is.
        batch: That was run.
    """
    ran, now = seen_of(scheduler).mode, getattr(batch, "forward_mode", None)
    if ran is None or now is None or now == ran or ran.is_idle() or not batch.reqs:
        return
    slots = [held(request).req_pool_idx for request in batch.reqs]
    had = {"as_before": None, "ran_as": ran.name, "left_as": now.name, "requests": len(slots)}
    wrong = (WrongEntry("mode", 0, 0, int(now), int(ran)),)
    summary = f"a batch of {len(slots)} requests was run as {ran.name}, and is {now.name} behind its forward"
    report_wrong(scheduler, wrong, MODE, RUN, _MODE, [None], None, slots, had=had, summary=summary)
