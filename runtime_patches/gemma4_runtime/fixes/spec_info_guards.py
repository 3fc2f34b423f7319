"""Fix: a batch whose speculative state can be neither merged nor filtered does not end the scheduler where it need not.

Between two steps a batch carries what the next draft starts from: per unfinished request the bonus token and the
target's hidden state. A verify input, or what verify hands on to the draft's extension, is of one step and has neither
`merge_batch` nor `filter_batch`; if it outlives the step, SGLang dies of an AttributeError at the next prefill. That
happens after a round in which all requests finished: SGLang 26859, and in this release still where
`forward_draft_extend_after_decode` puts the empty draft input on a copy of the batch, under data-parallel attention.

| unfinished requests without a draft input | what the guard does |
|---|---|
| none, in a merge | that side gets an empty draft input of the other side's kind |
| none, in a filter that keeps finished ones alone | these leave too, as `filter_batch()` has them do |
| some | `UnusableSpecInfo`, before anything is changed |

The first is what the worker should have left: nobody of that side is drafted for again, and SGLang's own merge of an
empty input is the other side's. The second leaves a batch without requests, which is dropped with its state unread. In
the third, requests could be drafted for from their last token alone; but a step that left its input on a batch with
live requests has not ended as it should, so their KV lengths are not to be relied on, and wrong ones give wrong tokens.

A filter that keeps all requests or none is left to SGLang, which then returns before it reads the state. So is a state
of None, and every algorithm that has no draft input to lack: the guards are for the EAGLE family, FROZEN_KV_MTP in it.
They can go when every worker leaves a draft input on the batch that it was given.
"""

from __future__ import annotations

import copy
import logging
from typing import Any, NoReturn

import torch

from gemma4_runtime.checks.batch_shapes import (
    FILTER,
    MERGE,
    cannot,
    has_draft_inputs,
    kept_by_filter,
    stranded,
    unfinished,
)
from gemma4_runtime.errors import UnusableSpecInfo

logger = logging.getLogger(__name__)


def before_merge(batch: Any, other: Any, **_unknown: Any) -> None:
    """Run before `ScheduleBatch.merge_batch(other)`.

    Raises:
        UnusableSpecInfo: a side has unfinished requests and no draft input for them.
    """
    sides = (batch, other)
    if not has_draft_inputs(batch) or not any(cannot(MERGE, side.spec_info) for side in sides):
        return
    for side in stranded(*sides):
        _refuse(MERGE, side, unfinished(side.reqs))
    for side, peer in (sides, sides[::-1]):
        if cannot(MERGE, side.spec_info):
            _say(MERGE, side)
            side.spec_info = _emptied(peer.spec_info)


def before_filter(
    batch: Any,
    chunked_req_to_exclude: Any = None,
    keep_indices: list[int] | None = None,
    v1_spec_info_filtered: bool | None = False,
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """Run before `ScheduleBatch.filter_batch`: return arguments with which all finished requests leave, or None.

    Raises:
        UnusableSpecInfo: some requests leave, unfinished ones stay, and there is no draft input for them.
    """
    if not has_draft_inputs(batch) or not cannot(FILTER, batch.spec_info):
        return None
    kept = kept_by_filter(batch, chunked_req_to_exclude, keep_indices)
    if len(kept) in (0, len(batch.reqs)):
        return None
    if requests := unfinished(kept):
        _refuse(FILTER, batch, requests)
    _say(FILTER, batch)
    return (batch,), {"keep_indices": []}


def _refuse(method: str, batch: Any, requests: list[Any]) -> NoReturn:
    carried = "nothing" if batch.spec_info is None else f"a {type(batch.spec_info).__name__}"
    named = ", ".join(str(request.rid) for request in requests[:4]) + (", ..." if len(requests) > 4 else "")
    raise UnusableSpecInfo(
        f"{method}: unfinished requests ({len(requests)}: {named}) have {carried} where the input of their next draft "
        "should be. The speculative worker handed the batch back in the middle of a step, so it is not known which of "
        "the verified tokens their KV stands at, and going on could give wrong ones."
    )


def _emptied(state: Any) -> Any:
    """Return a draft input of `state`'s kind for no request; None if `state` is none."""
    if state is None or cannot(MERGE, state):
        return None
    empty = copy.copy(state)
    empty.filter_batch(new_indices=torch.empty(0, dtype=torch.int64), has_been_filtered=False)
    return empty


def _say(method: str, batch: Any) -> None:
    logger.warning(
        "gemma4-triage: spec-info-guards: %s on a batch whose requests have all finished and which carries a %s: "
        "goes on with an empty draft input",
        method,
        type(batch.spec_info).__name__,
    )
