"""Reads what a request holds in the KV pools; 0.5.23 keeps it in a record of its own, `Req.kv`."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import count
from typing import Any

from gemma4_runtime.releases import at_least, read_as

_IN_A_RECORD = at_least(read_as(), "0.5.23")
COMMITS_WHAT_IS_ACCEPTED = _IN_A_RECORD
"""With drafts and overlap, a request commits what is accepted as results are looked at, and nothing of it before.

0.5.13.post1 commits one token as the verification is prepared, and the others as its result is looked at.
"""


def held(request: Any) -> Any:
    """Returns what has a request's `req_pool_idx`, `kv_committed_len`, `kv_allocated_len` and `cache_protected_len`.

    Args:
        request: A `Req`.
    """
    return getattr(request, "kv", request) if _IN_A_RECORD else request


_NUMBERS = count(1)


def stay_of(request: Any) -> tuple[int, int]:
    """Returns what tells one stay of a request in the pools from all others.

    A client may give a request the id of one that has ended, so the object itself is numbered as it is first seen; a
    retraction begins a new stay.

    Args:
        request: A `Req`.
    """
    known = getattr(request, "gemma4_triage_number", None)
    if known is None:
        known = request.gemma4_triage_number = next(_NUMBERS)
    return known, request.retraction_count


def request_slots(requests: Iterable[Any]) -> list[int]:
    """Returns the request slot of each of `requests`, 0 for one that has none; a step asks for all of a batch.

    Args:
        requests: `Req`s.
    """
    if _IN_A_RECORD:
        return [getattr(request, "kv", request).req_pool_idx or 0 for request in requests]
    return [request.req_pool_idx or 0 for request in requests]


def committed_freed(request: Any) -> bool:
    """Returns whether what a request has committed is no longer its own, so that its row says nothing.

    Args:
        request: A `Req`.
    """
    return request.kv.is_kv_released if _IN_A_RECORD else request.kv_committed_freed


def swa_evicted(request: Any) -> int | None:
    """Returns how many of a request's first tokens have given up their slots of the sliding window.

    Args:
        request: A `Req`, or the slot that a session keeps of one.
    """
    if not _IN_A_RECORD:
        return getattr(request, "swa_evicted_seqlen", None)
    from gemma4_runtime.release import ComponentType

    return held(request).get_evicted_seqlen(ComponentType.SWA)


def set_swa_evicted(request: Any, length: int) -> None:
    """Sets how many of a request's first tokens have given up their slots of the sliding window.

    Args:
        request: A `Req`.
        length: How many.
    """
    if not _IN_A_RECORD:
        request.swa_evicted_seqlen = length
        return
    from gemma4_runtime.release import ComponentType

    held(request).set_evicted_seqlen(ComponentType.SWA, length)


def prefilled_until(request: Any) -> int:
    """Returns how many of a request's first tokens have KV once the prefill that it is in has run.

    Args:
        request: A `Req`.
    """
    return request.extend_end if _IN_A_RECORD else request.fill_len


def prefix_length(request: Any) -> int:
    """Returns how many of a request's first tokens have KV before the prefill that it is in.

    Args:
        request: A `Req`.
    """
    return request.prefix_len if _IN_A_RECORD else len(request.prefix_indices)


def ending_tokens(request: Any) -> frozenset[int]:
    """Returns the tokens at which SGLang ends a request's answer: its own, the model's and the tokenizer's.

    Args:
        request: A `Req`; empty where it is to go on behind them.
    """
    asked, tokenizer = request.sampling_params, getattr(request, "tokenizer", None)
    if asked is None or asked.ignore_eos:
        return frozenset()
    last = getattr(tokenizer, "eos_token_id", None)
    more = getattr(tokenizer, "additional_stop_token_ids", None)
    named = (asked.stop_token_ids, getattr(request, "eos_token_ids", None), more, () if last is None else (last,))
    return frozenset(token for tokens in named for token in tokens or ())


def write_slots(forward_batch: Any) -> Any:
    """Returns the slots that a forward will write, as rows of req_to_token name them; None if it writes none.

    Args:
        forward_batch: A `ForwardBatch`, which in 0.5.23 may have them as a translated pool numbers them, too.
    """
    virtual = getattr(forward_batch, "out_cache_loc_virtual", None)
    return forward_batch.out_cache_loc if virtual is None else virtual


def current_batch(scheduler: Any) -> Any:
    """Returns the batch that a scheduler works on; 0.5.23 keeps it for those who look from outside alone.

    Args:
        scheduler: A `Scheduler`.
    """
    return scheduler.cur_batch_for_debug if _IN_A_RECORD else scheduler.cur_batch


def swa_kept_until(request: Any, page_size: int) -> int:
    """Returns the token below which a request keeps slots of the sliding window that its window has left.

    Args:
        request: A `Req`, or the record that a session keeps of one.
        page_size: Tokens of a page.
    """
    return held(request).swa_dead_lo(page_size) if _IN_A_RECORD else 0
