"""What `request-rows` asks of requests that go on: none has a token in its answer that ends it.

No dump names a token: of one that ends an answer it says where it stands.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gemma4_runtime.checks.request_rows import WrongEntry
from gemma4_runtime.release.requests import ending_tokens, held, stay_of
from gemma4_runtime.rows.report import NEXT, STOP, report_wrong
from gemma4_runtime.rows.seen import seen_of

_STATE = "finish state"


def check_stops(scheduler: Any, requests: Sequence[Any]) -> None:
    """Find a request that goes on though an answer has got a token at which SGLang ends it.

    Each token is looked at once. One that is to end as the next result comes is left out, and one of a beam search,
    which ends as its group does.

    Args:
        scheduler: Whose requests they are.
        requests: Those that run between two steps.
    """
    seen = seen_of(scheduler)
    known, seen.looked_at = seen.looked_at, {stay_of(one): len(one.output_ids) for one in requests}
    for request in requests:
        answer, start = request.output_ids, known.get(stay_of(request), 0)
        ends = getattr(request, "beam_group", None) is not None or request.finished() or request.to_finish
        if ends or len(answer) <= start or not (ending := ending_tokens(request)):
            continue
        place = next((place for place in range(start, len(answer)) if answer[place] in ending), None)
        if place is None:
            continue
        slot, behind, grown = held(request).req_pool_idx, len(answer) - place - 1, len(answer) - start
        had = {"as_before": None, "stop_at": place, "behind": behind, "grown": grown}
        wrong = (WrongEntry("goes on", 0, 0, 0, 1),)
        summary = (
            f"the request in slot {slot} goes on: token {place} of its answer is one at which it ends, with "
            f"{behind} behind it; the answer grew by {grown}"
        )
        report_wrong(scheduler, wrong, STOP, NEXT, _STATE, [None], None, [slot], had=had, summary=summary)
        return
