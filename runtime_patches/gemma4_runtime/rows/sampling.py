"""What `request-rows` asks of a batch's sampling parameters: each row's are what the row's request asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from gemma4_dumps.structures import Defect
from gemma4_runtime.checks.request_rows import WrongEntry
from gemma4_runtime.release.requests import held, stay_of
from gemma4_runtime.rows.report import INIT, SAMPLING, report_wrong
from gemma4_runtime.rows.seen import seen_of
from gemma4_runtime.rows.tokens import NOBODYS

PARAMETERS = "sampling parameters"
COLUMNS = {"temperatures": "temperature", "top_ps": "top_p", "top_ks": "top_k", "min_ps": "min_p"}
"""What a batch has of each request, [requests], and where the request has it."""
_EVERY_TOKEN = 1 << 30
"""The top_k of a request that takes no part in choosing the highest."""
_CUMULATED = ("cumulated_frequency_penalties", "cumulated_presence_penalties")
"""What penalizers have counted, where no copy for the forward has summed it."""


class _Flag(NamedTuple):
    """Holds what a batch says of all of its requests, and the value with which a request contradicts it."""

    name: str
    value: bool
    parameter: str
    contradicts: Callable[[float], bool]


_FLAGS = (
    _Flag("is_all_greedy", True, "top_k", lambda value: value > 1),
    _Flag("need_top_p_sampling", False, "top_p", lambda value: value != 1),
    _Flag("need_top_k_sampling", False, "top_k", lambda value: value != _EVERY_TOKEN),
    _Flag("need_min_p_sampling", False, "min_p", lambda value: value > 0),
)


def check_sampling(scheduler: Any, requests: Sequence[Any], made: Any) -> bool:
    """Find requests that are about to be sampled with parameters that they did not ask for; say if there are any.

    What a request asked for is what it had as it was first seen: whether that or the batch has changed, a dump says.

    Args:
        scheduler: Whose requests they are.
        requests: Those of the batch.
        made: The forward's batch.
    """
    given, seen = getattr(made, "sampling_info", None), seen_of(scheduler)
    asked = [one for request in requests if (one := _asked(request)) is not None]
    known, seen.asked = seen.asked, {}
    if given is None or len(asked) < len(requests):
        return False
    first = [known.get(stay_of(request), now) for request, now in zip(requests, asked, strict=True)]
    seen.asked = {stay_of(request): one for request, one in zip(requests, first, strict=True)}
    rows = _rows_of(given, len(requests))
    if rows is None:
        return False
    slots = [held(request).req_pool_idx for request in requests]
    for name, values in rows.items():
        wanted = [np.float32(one[name]) for one in first]
        bad = [row for row, (has, should) in enumerate(zip(values, wanted, strict=True)) if has != should]
        if bad:
            row = bad[0]
            whose = {
                one: [
                    slot
                    for slot, should in zip(slots, wanted, strict=True)
                    if slot is not None and should == values[one]
                ]
                for one in bad
            }
            given = {"parameter": name, "given": str(values[row]), "asked": str(wanted[row])}
            given["request_says"] = str(np.float32(asked[row][name]))
            summary = f"{name} of the request in slot {slots[row]} is {values[row]} in its batch, and it asked for "
            summary += str(wanted[row])
            _report(scheduler, slots, made, "sampling", whose, given, sorted(values) == sorted(wanted), summary)
            return True
    lost = next((flag for flag in _FLAGS if _is_lost(flag, given, first)), None)
    if lost is None:
        return _check_tokens(scheduler, requests, slots, made)
    row = next(row for row, one in enumerate(first) if lost.contradicts(one[lost.parameter]))
    had = {"as_before": None, "parameter": lost.name, "given": lost.value, "asked": str(first[row][lost.parameter])}
    summary = f"{lost.name} of a batch is {lost.value}, and the request in slot {slots[row]} asked for "
    summary += f"{lost.parameter} {first[row][lost.parameter]}"
    wrong = [WrongEntry("flag", row, 0, int(lost.value), int(not lost.value))]
    report_wrong(scheduler, wrong, SAMPLING, INIT, PARAMETERS, [None], made, slots, had=had, summary=summary)
    return True


def _report(
    scheduler: Any,
    slots: Sequence[int | None],
    made: Any,
    why: str,
    whose: Mapping[int, Sequence[int]],
    had: Mapping[str, Any],
    is_turned: bool,
    summary: str,
) -> None:
    """Report rows that have not their requests' own.

    Args:
        scheduler: Whose requests they are.
        slots: Of each row, its request's.
        made: The forward's batch.
        why: What kind of parameter it is.
        whose: Of each wrong row, the requests whose values stand there.
        had: What the dump says of the first of them.
        is_turned: Whether all rows together have what all requests asked for.
        summary: What is wrong, in one clause.
    """
    wrong = [WrongEntry(why, row, 0, of[0] if of else NOBODYS, slots[row]) for row, of in whose.items()]
    kinds = [Defect.SWAPPED if is_turned else Defect.FOREIGN if of else None for of in whose.values()]
    told = {"as_before": None, "rows_wrong": len(wrong), "requests": len(slots), **had}
    report_wrong(scheduler, wrong, SAMPLING, INIT, PARAMETERS, kinds, made, slots, had=told, summary=summary)


def _asked(request: Any) -> dict[str, float] | None:
    """Return what a request asks for, by parameter; None where it does not say."""
    asked = getattr(request, "sampling_params", None)
    said = ((name, getattr(asked, name, None)) for name in COLUMNS.values())
    found = {name: float(value) for name, value in said if isinstance(value, (int, float))}
    return found if len(found) == len(COLUMNS) else None


def _rows_of(given: Any, requests: int) -> dict[str, list[np.float32]] | None:
    """Return a batch's values by parameter, one for each request; None where it has another number of them."""
    columns = {name: getattr(given, column, None) for column, name in COLUMNS.items()}
    there = {name: column for name, column in columns.items() if isinstance(column, torch.Tensor)}
    if len(there) < len(columns) or any(column.numel() != requests for column in there.values()):
        return None
    # One copy to the host for all of them; a top_k is a whole number that float32 has, or all of a vocabulary.
    table = torch.stack([column.flatten().float() for column in there.values()]).cpu().numpy()
    return {name: list(row) for name, row in zip(there, table, strict=True)}


def _is_lost(flag: _Flag, given: Any, asked: Sequence[Mapping[str, float]]) -> bool:
    """Return whether a batch says of all what one of its requests did not ask for."""
    said = getattr(given, flag.name, None)
    return said is flag.value and any(flag.contradicts(one[flag.parameter]) for one in asked)


def _check_tokens(scheduler: Any, requests: Sequence[Any], slots: Sequence[int | None], made: Any) -> bool:
    """Hold what is added to logits of single tokens against biases and answers of the requests; say if it is wrong."""
    given = made.sampling_info
    biased = [_bias_of(request) for request in requests]
    has = _tokens_of(getattr(given, "logit_bias", None), len(requests))
    if has is not None and has != biased:
        rows = [row for row, (one, should) in enumerate(zip(has, biased, strict=True)) if one != should]
        whose = {
            row: [slot for slot, one in zip(slots, biased, strict=True) if slot is not None and one and one == has[row]]
            for row in rows
        }
        is_turned = all(has.count(one) == biased.count(one) for one in has)
        row = rows[0]
        given = {"parameter": "logit_bias", "given": str(len(has[row])), "asked": str(len(biased[row]))}
        summary = f"the logit_bias of the request in slot {slots[row]} is not its own in its batch"
        _report(scheduler, slots, made, "tokens", whose, given, is_turned, summary)
        return True
    # With overlap or drafts what was sampled last may be penalised ahead of the answer that has it.
    if scheduler.enable_overlap or not scheduler.spec_algorithm.is_none():
        return False
    has = _tokens_of(_penalties(given), len(requests))
    if has is None or any(getattr(one.sampling_params, "min_new_tokens", 0) for one in requests):
        return False
    answers = [set(request.output_ids) | set(bias) for request, bias in zip(requests, biased, strict=True)]
    rows = [row for row, one in enumerate(has) if not one.keys() <= answers[row]]
    if rows:
        whose = {
            row: [slot for slot, one in zip(slots, answers, strict=True) if slot is not None and has[row].keys() <= one]
            for row in rows
        }
        foreign = len(has[rows[0]].keys() - answers[rows[0]])
        given = {"parameter": "penalties", "given": str(foreign), "asked": "0"}
        summary = (
            f"{foreign} tokens are penalised for the request in slot {slots[rows[0]]} that its answer does not have"
        )
        _report(scheduler, slots, made, "tokens", whose, given, False, summary)
    return bool(rows)


def _bias_of(request: Any) -> dict[int, float]:
    """Return what a request adds to the logits of which tokens."""
    asked = getattr(request.sampling_params, "logit_bias", None) or {}
    return {int(token): float(np.float32(value)) for token, value in asked.items() if value}


def _penalties(given: Any) -> torch.Tensor | None:
    """Return what is taken off logits for tokens that an answer has, [requests, vocabulary]; None where nothing is."""
    if (summed := getattr(given, "acc_additive_penalties", None)) is not None:
        return summed
    asked = getattr(getattr(given, "penalizer_orchestrator", None), "penalizers", {})
    each = [getattr(one, name, None) for one in asked.values() for name in _CUMULATED]
    there = [one for one in each if isinstance(one, torch.Tensor)]
    same = bool(there) and all(one.shape == there[0].shape for one in there)
    return torch.stack(there).abs().sum(dim=0) if same else None


def _tokens_of(added: Any, requests: int) -> list[dict[int, float]] | None:
    """Return of each row what is added to which tokens; None where nothing is, or of another number of rows."""
    if not isinstance(added, torch.Tensor) or added.ndim != 2 or added.shape[0] != requests:
        return None
    at = added.nonzero()
    found: list[dict[int, float]] = [{} for _ in range(requests)]
    for (row, token), value in zip(at.tolist(), added[at[:, 0], at[:, 1]].float().tolist(), strict=True):
        found[row][token] = value
    return found
