"""Probe `leak-ledger`, who holds what, and who asked: attributed just after SGLang wrote the rows of req_to_token.

| SGLang's function                  | slots                              | tokens per request                    |
|------------------------------------|------------------------------------|---------------------------------------|
| alloc_for_extend(batch)            | its result; the prefixes in rows   | batch.extend_lens                     |
| alloc_for_decode(batch, …)         | its result                         | the same for all                      |
| EagleVerifyInput.prepare_for_verify| batch.out_cache_loc                | the same for all: draft tokens        |
| EagleDraftInputV2Mixin.            | the latest that were handed out    | how much kv_allocated_len rose        |
|   prepare_for_decode; from 0.5.23  |                                    |                                       |
|   on eagle_prepare_for_decode      |                                    |                                       |

All of it is known on the host: no kernel is launched for it. An owner is a request slot and its generation, which
`ReqToTokenPool.alloc` raises, so that the next request in the same slot is another owner.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from gemma4_runtime.checks.page_ledger import Site
from gemma4_runtime.leak.ledger import BY, SITE, UP_TO, generations_of, ledger_of
from gemma4_runtime.release.prefix_caches import inserted_path
from gemma4_runtime.release.requests import held, request_slots


def around_alloc_for_extend(original: Callable[..., Any], batch: Any) -> Any:
    """Run around `alloc_for_extend(batch)` -> (slots [extend tokens], request slots, request slots)."""
    fresh = [held(request).req_pool_idx is None for request in batch.reqs]
    result = _at(Site.ALLOC_FOR_EXTEND, original, batch)
    _own(batch, result[0], list(batch.extend_lens))
    if any(fresh):
        _at(Site.ALLOC_FOR_EXTEND, _share, batch, fresh)
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


def around_eagle_decode(original: Callable[..., Any], batch: Any, *args: Any, **kwargs: Any) -> Any:
    """Run around 0.5.23's `eagle_prepare_for_decode(batch)`, which tops up what each request has allocated."""
    before = [held(request).kv_allocated_len for request in batch.reqs]
    ledger = ledger_of(batch.token_to_kv_pool_allocator)
    ledger.latest_hand_out = None
    result = _at(Site.SPEC_V2_DECODE, original, batch, *args, **kwargs)
    lengths = [held(request).kv_allocated_len - had for request, had in zip(batch.reqs, before, strict=True)]
    if ledger.latest_hand_out is not None and any(lengths):
        _own(batch, ledger.latest_hand_out, lengths)
    return result


def around_verify(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Run around `EagleVerifyInput.verify`, which frees the slots of rejected draft tokens."""
    return _at(Site.VERIFY, original, *args, **kwargs)


def around_cache_unfinished(original: Callable[..., Any], cache: Any, req: Any, *args: Any, **kwargs: Any) -> Any:
    """Note who gives back what `cache_unfinished_req(req)` of a prefix cache has twice."""
    with _By(cache, req):
        return _at(Site.CACHE_UNFINISHED_REQ, original, cache, req, *args, **kwargs)


def around_cache_finished(original: Callable[..., Any], cache: Any, req: Any, *args: Any, **kwargs: Any) -> Any:
    """Note who gives back what `cache_finished_req(req)` of a prefix cache does not take."""
    with _By(cache, req):
        return _at(Site.CACHE_FINISHED_REQ, original, cache, req, *args, **kwargs)


def around_checkpoint(original: Callable[..., Any], cache: Any, req: Any, *args: Any, **kwargs: Any) -> Any:
    """Note who gives back what 0.5.23's `checkpoint(req, up_to)` of a prefix cache has twice, at its end or before."""
    token = UP_TO.set(kwargs.get("up_to"))
    try:
        with _By(cache, req):
            site = Site.CACHE_FINISHED_REQ if req.finished() else Site.CACHE_UNFINISHED_REQ
            return _at(site, original, cache, req, *args, **kwargs)
    finally:
        UP_TO.reset(token)


def around_release(original: Callable[..., Any], req: Any, tree_cache: Any, *args: Any, **kwargs: Any) -> Any:
    """Note who gives back what `release_kv_cache(req, tree_cache)` frees beyond the committed tokens."""
    with _By(tree_cache, req):
        return _at(Site.RELEASE_KV_CACHE, original, req, tree_cache, *args, **kwargs)


def around_evict(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Note that `evict` of a prefix cache gives back pages that are of no request any more."""
    token = BY.set(None)
    try:
        return _at(Site.EVICT_TREE, original, *args, **kwargs)
    finally:
        BY.reset(token)


def around_insert(original: Callable[..., Any], cache: Any, params: Any, *args: Any, **kwargs: Any) -> Any:
    """Note which slots `insert(params)` of a prefix cache took: those behind what it had already.

    If it gave some back meanwhile, 0.5.23 may have taken others in their place: then all that it has of these tokens is
    noted, and what it had before keeps the step at which it was given that.
    """
    if params.value is None or cache.disable:
        return original(cache, params, *args, **kwargs)
    ledger = ledger_of(cache.token_to_kv_pool_allocator)
    events = ledger.log.count
    result = original(cache, params, *args, **kwargs)
    taken = params.value[result.prefix_len :]
    if ledger.log.count != events and (path := inserted_path(cache, result)) is not None:
        taken = path
    if taken.numel():
        ledger.given(taken)
    return result


def around_evict_swa(original: Callable[..., Any], batch: Any, req: Any, *args: Any, **kwargs: Any) -> Any:
    """Run around `ScheduleBatch._evict_swa(req, pre_len)`, which gives up SWA slots that the window has left."""
    with _By(batch.tree_cache, req):
        return _at(Site.EVICT_SWA, original, batch, req, *args, **kwargs)


def around_req_alloc(original: Callable[..., Any], pool: Any, reqs: Any) -> Any:
    """Run around `ReqToTokenPool.alloc(reqs)`: a slot that is given anew starts a generation."""
    fresh = [held(request).req_pool_idx is None for request in reqs]
    before = len(pool.free_slots)
    indices = original(pool, reqs)
    if indices is not None:
        generations = generations_of(pool)
        given = [slot for new, slot in zip(fresh, indices, strict=True) if new]
        for slot in given:
            generations.begin(slot)
        if before - len(pool.free_slots) < len(given):
            generations.left.update(set(given) & set(pool.free_slots))
    return indices


def _at(site: Site, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    token = SITE.set(site)
    try:
        return original(*args, **kwargs)
    finally:
        SITE.reset(token)


class _By:
    """A context manager: what is given back inside is given back by this request."""

    __slots__ = ("_token", "_who")

    def __init__(self, tree_cache: Any, req: Any) -> None:
        slot = held(req).req_pool_idx
        pool = getattr(tree_cache, "req_to_token_pool", None)
        self._who = None if slot is None or pool is None else (slot, generations_of(pool)[slot])

    def __enter__(self) -> None:
        self._token = BY.set(self._who)

    def __exit__(self, *raised: object) -> None:
        BY.reset(self._token)


def _share(batch: Any, fresh: list[bool]) -> None:
    """Note whose prefix was found: of a request without a slot before, since a later chunk's prefix is its own.

    Its row has the prefix by now; of each page the first slot is enough.
    """
    ledger, rows = ledger_of(batch.token_to_kv_pool_allocator), batch.req_to_token_pool.req_to_token
    generations = generations_of(batch.req_to_token_pool)
    for request, new, length in zip(batch.reqs, fresh, batch.prefix_lens, strict=True):
        if new and length:
            slot = held(request).req_pool_idx
            ledger.shared(rows[slot, : length : ledger.page_size].to(torch.int64), (slot, generations[slot]))


def _own_evenly(batch: Any, slots: Any) -> None:
    count = len(batch.reqs)
    if count and slots.numel() % count == 0:
        _own(batch, slots, [slots.numel() // count] * count)


def _own(batch: Any, slots: Any, lengths: list[int]) -> None:
    # A request whose row was given back is nobody here; that it still runs is for another probe to say.
    rows = request_slots(batch.reqs)
    generations = generations_of(batch.req_to_token_pool).of(rows)
    ledger_of(batch.token_to_kv_pool_allocator).owned(slots, rows, generations, lengths)
