"""What `request-rows` asks of who is in a batch: each request once, and in a decode none whose prompt is still read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gemma4_dumps.structures import Defect, Structure
from gemma4_runtime.checks.request_rows import WrongEntry
from gemma4_runtime.release.requests import held, prefilled_until
from gemma4_runtime.rows.report import INIT, ROW_INDEX, report_wrong


def check_members(scheduler: Any, requests: Sequence[Any], made: Any) -> bool:
    """Report a request that ought not to be at its place in a forward's batch, and say whether there is one.

    Args:
        scheduler: Whose requests they are.
        requests: Those of the batch.
        made: The forward's batch.
    """
    slots = [held(one).req_pool_idx for one in requests]
    if check_once(scheduler, requests, INIT, made):
        return True
    chunked = getattr(scheduler, "chunked_req", None)
    row = next((row for row, one in enumerate(requests) if one is chunked), None)
    goes_on = made.forward_mode.is_decode() or made.forward_mode.is_target_verify()
    if chunked is None or row is None or not goes_on:
        return False
    prompt, read = len(chunked.origin_input_ids), prefilled_until(chunked)
    # The scheduler may name one that has been read.
    if read >= prompt:
        return False
    _report(scheduler, made, slots, row, "chunked", None, {"as_before": None, "read": read, "prompt": prompt})
    return True


def check_once(scheduler: Any, requests: Sequence[Any], site: str, made: Any = None) -> bool:
    """Report a request that a batch has twice, and say whether there is one.

    Args:
        scheduler: Whose requests they are.
        requests: Those of the batch.
        site: The function of SGLang's at which they were seen.
        made: The forward's batch; None between forwards.
    """
    firsts: dict[int, int] = {}
    for row, one in enumerate(requests):
        if (first := firsts.setdefault(id(one), row)) != row:
            had = {"as_before": None, "row_before": first}
            slots = [held(one).req_pool_idx for one in requests]
            _report(scheduler, made, slots, row, "in it twice", Defect.DUPLICATE, had, site)
            return True
    return False


def _report(
    scheduler: Any,
    made: Any,
    slots: Sequence[int | None],
    row: int,
    why: str,
    kind: Defect | None,
    had: dict[str, Any],
    site: str = INIT,
) -> None:
    wrong = (WrongEntry(why, row, 0, slots[row] or 0),)
    report_wrong(scheduler, wrong, ROW_INDEX, site, Structure.ROW_INDICES, [kind], made, slots, had=had)
