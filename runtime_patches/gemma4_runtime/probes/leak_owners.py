"""Probe `leak-ledger`, who holds what, and who asked: attributed just after SGLang wrote the rows of req_to_token.

| SGLang's function                  | slots                              | tokens per request                    |
|------------------------------------|------------------------------------|---------------------------------------|
| alloc_for_extend(batch)            | its result                         | batch.extend_lens                     |
| alloc_for_decode(batch, …)         | its result                         | the same for all                      |
| EagleVerifyInput.prepare_for_verify| batch.out_cache_loc                | the same for all: draft tokens        |
| EagleDraftInputV2Mixin.            | the latest that were handed out    | how much kv_allocated_len rose        |
|   prepare_for_decode               |                                    |                                       |

All of it is known on the host: no kernel is launched for it. An owner is a request slot and its generation, which
`ReqToTokenPool.alloc` raises, so that the next request in the same slot is another owner.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gemma4_runtime.checks.page_ledger import Site
from gemma4_runtime.leak.ledger import SITE, generations_of, ledger_of


def around_alloc_for_extend(original: Callable[..., Any], batch: Any) -> Any:
    """Run around `alloc_for_extend(batch)` -> (slots [extend tokens], request slots, request slots)."""
    result = _at(Site.ALLOC_FOR_EXTEND, original, batch)
    _own(batch, result[0], list(batch.extend_lens))
    return result


def around_alloc_for_decode(original: Callable[..., Any], batch: Any, token_per_req: int) -> Any:
    """Run around `alloc_for_decode(batch, token_per_req)` -> slots."""
    slots = _at(Site.ALLOC_FOR_DECODE, original, batch, token_per_req)
    _own_evenly(batch, slots)
    return slots


def around_prepare_for_verify(original: Callable[..., Any], verify_input: Any, batch: Any, page_size: int) -> Any:
    """Run around `prepare_for_verify(batch, page_size)` of spec v1; leaves the slots in batch.out_cache_loc."""
    result = _at(Site.PREPARE_FOR_VERIFY, original, verify_input, batch, page_size)
    if not batch.forward_mode.is_idle():
        _own_evenly(batch, batch.out_cache_loc)
    return result


def around_spec_v2_decode(original: Callable[..., Any], draft_input: Any, batch: Any) -> Any:
    """Run around `prepare_for_decode(batch)` of spec v2, which tops up what each request has allocated."""
    before = [request.kv_allocated_len for request in batch.reqs]
    ledger = ledger_of(batch.token_to_kv_pool_allocator)
    ledger.latest_hand_out = None
    result = _at(Site.SPEC_V2_DECODE, original, draft_input, batch)
    lengths = [request.kv_allocated_len - had for request, had in zip(batch.reqs, before, strict=True)]
    if ledger.latest_hand_out is not None and any(lengths):
        _own(batch, ledger.latest_hand_out, lengths)
    return result


def around_verify(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Run around `EagleVerifyInput.verify`, which frees the slots of rejected draft tokens."""
    return _at(Site.VERIFY, original, *args, **kwargs)


def around_cache_unfinished(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Run around `cache_unfinished_req` of a prefix cache."""
    return _at(Site.CACHE_UNFINISHED_REQ, original, *args, **kwargs)


def around_cache_finished(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Run around `cache_finished_req` of a prefix cache."""
    return _at(Site.CACHE_FINISHED_REQ, original, *args, **kwargs)


def around_release(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Run around `release_kv_cache`, whose own part frees what was allocated beyond the committed tokens."""
    return _at(Site.RELEASE_KV_CACHE, original, *args, **kwargs)


def around_evict(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Run around `evict` of a prefix cache."""
    return _at(Site.EVICT_TREE, original, *args, **kwargs)


def around_evict_swa(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Run around `ScheduleBatch._evict_swa`, which gives up SWA slots that the window has left."""
    return _at(Site.EVICT_SWA, original, *args, **kwargs)


def around_req_alloc(original: Callable[..., Any], pool: Any, reqs: Any) -> Any:
    """Run around `ReqToTokenPool.alloc(reqs)`: a slot that is given anew starts a generation."""
    fresh = [request.req_pool_idx is None for request in reqs]
    indices = original(pool, reqs)
    if indices is not None:
        generations = generations_of(pool)
        for new, slot in zip(fresh, indices, strict=True):
            if new:
                generations[slot] += 1
    return indices


def _at(site: Site, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    token = SITE.set(site)
    try:
        return original(*args, **kwargs)
    finally:
        SITE.reset(token)


def _own_evenly(batch: Any, slots: Any) -> None:
    count = len(batch.reqs)
    if count and slots.numel() % count == 0:
        _own(batch, slots, [slots.numel() // count] * count)


def _own(batch: Any, slots: Any, lengths: list[int]) -> None:
    rows = [request.req_pool_idx for request in batch.reqs]
    generation = generations_of(batch.req_to_token_pool).__getitem__
    ledger_of(batch.token_to_kv_pool_allocator).owned(slots, rows, [*map(generation, rows)], lengths)
