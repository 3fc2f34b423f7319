"""What `request-rows` asks of answers: each ends in the token that its request's forward sampled.

No dump names a token: of one that is wrong it says whose it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from gemma4_dumps.structures import Defect, Structure
from gemma4_runtime.checks.request_rows import WrongEntry
from gemma4_runtime.release.requests import held, stay_of
from gemma4_runtime.rows.report import COUNTER, NEXT, TOKEN, or_swapped, report_wrong
from gemma4_runtime.rows.seen import seen_of
from gemma4_runtime.rows.tokens import NOBODYS

_ANSWER = "answer's tokens"
_SENT = "send_token_offset"


def note_sampled(scheduler: Any, batch: Any, result: Any) -> None:
    """Note which token a forward sampled for each request of its batch, and how long its answer was then.

    Not with overlap, where answers grow a step later, nor with drafts, of which a step gives several. Waits for the
    device.

    Args:
        scheduler: Whose batch it is.
        batch: That was run.
        result: What `Scheduler.run_batch` returned for it.
    """
    seen, given = seen_of(scheduler), getattr(result, "next_token_ids", None)
    seen.answers = {}
    if scheduler.enable_overlap or not scheduler.spec_algorithm.is_none() or batch.forward_mode.is_idle():
        return
    # Of a diffusion model's block each request has several.
    if not isinstance(given, torch.Tensor) or given.ndim != 1 or len(given) != len(batch.reqs or ()):
        return
    seen.answers = {
        stay_of(request): (len(request.output_ids), token)
        for request, token in zip(batch.reqs, given.tolist(), strict=True)
    }


def check_answers(scheduler: Any, requests: Sequence[Any]) -> None:
    """Find answers that have grown by a token which is not what was sampled for them.

    What a grammar or a beam chooses is left out, and an answer that has ended: SGLang writes over its last token where
    the model gave one that there is none of.

    Args:
        scheduler: Whose requests they are.
        requests: Those that run between two steps.
    """
    seen = seen_of(scheduler)
    known = [seen.answers.get(stay_of(request)) for request in requests]
    seen.answers, seen.answered = {}, {}
    wrong: list[WrongEntry] = []
    kinds: list[Defect | None] = []
    slots = [held(request).req_pool_idx for request in requests]
    if _are_one_list(scheduler, requests, slots):
        return
    for row, (request, noted) in enumerate(zip(requests, known, strict=True)):
        if noted is None or request.finished():
            continue
        if len(request.output_ids) != noted[0] + 1:
            continue
        if request.output_ids[-1] == noted[1]:
            seen.answered[stay_of(request)] = len(request.output_ids)
            continue
        if any(getattr(request, name, None) is not None for name in ("grammar", "beam_group")):
            continue
        found = request.output_ids[-1]
        others = [
            slots[other] for other, one in enumerate(known) if other != row and one is not None and one[1] == found
        ]
        wrong.append(WrongEntry("answered", row, 0, (others[0] if others else None) or NOBODYS, slots[row]))
        kinds.append(Defect.FOREIGN if others else None)
    if wrong:
        _report_answers(scheduler, wrong, kinds, slots)
    _check_sent(scheduler, requests, slots)


def _are_one_list(scheduler: Any, requests: Sequence[Any], slots: Sequence[int | None]) -> bool:
    """Report two requests whose answers are one list, which both grow; say if there are any."""
    lists: dict[int, int] = {}
    for row, request in enumerate(requests):
        if getattr(request, "beam_group", None) is not None:
            continue
        other = lists.setdefault(id(request.output_ids), row)
        if other != row:
            wrong = [WrongEntry("one list", row, 0, slots[other] or 0, slots[row])]
            summary = f"the answers of the requests in slots {slots[row]} and {slots[other]} are one list"
            had = {"as_before": None, "rows_wrong": 2}
            kinds: list[Defect | None] = [Defect.FOREIGN]
            report_wrong(scheduler, wrong, TOKEN, NEXT, _ANSWER, kinds, None, slots, had=had, summary=summary)
            return True
    return False


def _report_answers(
    scheduler: Any, wrong: Sequence[WrongEntry], kinds: list[Defect | None], slots: Sequence[int | None]
) -> None:
    kinds, whose = or_swapped(wrong, kinds), wrong[0].value
    of = "of no request" if whose == NOBODYS else f"of the request in slot {whose}"
    summary = f"the answer of the request in slot {slots[wrong[0].row]} ends in another token than was sampled: {of}"
    had = {"as_before": None, "rows_wrong": len(wrong)}
    report_wrong(scheduler, wrong, TOKEN, NEXT, _ANSWER, kinds, None, slots, had=had, summary=summary)


def _check_sent(scheduler: Any, requests: Sequence[Any], slots: Sequence[int | None]) -> None:
    """Find requests that count fewer of their tokens as sent to their clients than they did: some are sent twice."""
    seen, wrong = seen_of(scheduler), []
    known, seen.sent = seen.sent, {}
    for row, request in enumerate(requests):
        sent, before = getattr(request, _SENT, None), known.get(stay_of(request)[0])
        if not isinstance(sent, int):
            continue
        if before is not None and sent < before:
            wrong.append(WrongEntry("fell", row, 0, sent, before))
        seen.sent[stay_of(request)[0]] = sent
    if wrong:
        kinds: list[Defect | None] = [None] * len(wrong)
        had = {"as_before": None, "counter": _SENT}
        report_wrong(scheduler, wrong, COUNTER, NEXT, Structure.REQUEST_COUNTERS, kinds, None, slots, had=had)
