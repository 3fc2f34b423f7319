"""Faults: pages are handed out, given back or counted as they must not be.

| fault                           | what                                                                              |
|---------------------------------|-----------------------------------------------------------------------------------|
| swa-alloc-oob                   | after some decode allocations the last token is mapped to the first slot past the |
|                                 | SWA buffer, once: the trap has to fire there, and not at a far later read         |
| alloc-on-one-pool               | `alloc_decode` gets its page from the full pool and none from the SWA pool, once  |
| stale-mapping                   | `free_swa` gives the SWA pages back and leaves the full-to-SWA mapping as it was  |
| free-of-page-zero               | a finished request also frees an entry of its row that was never written: slot 0  |
| deferred-free-after-replacement | between a grouped free and its flush, an SWA page to be freed is replaced, once   |
| page-over-count                 | the prefix cache hears of one evicted SWA page less than there were, once         |

An allocation on one pool gives nothing, and does not give back what it took: the full page is lost. With page_size 1
SGLang takes slots by `alloc`, which asks both pools before it takes anything: there this defect cannot be.

Whoever frees full slots with a stale mapping frees their SWA pages again, which by then may be another request's.
Page 0 is the dummy that padded tokens write to: once in the free list, it is handed out like any other. The flush looks
the mapping up late, so it frees the replacement, and nobody frees the first SWA page. A page that the cache counts as
evictable although the SWA pool has it back makes the sums exceed the pool.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

import torch

from gemma4_runtime.injections import injected
from gemma4_runtime.release.prefix_caches import swa_evicted_of, with_swa_evicted
from gemma4_runtime.release.requests import held

HEALTHY_CALLS = 8
_calls: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
_done: set[str] = set()
"""Of the faults that act once, those that have."""


def spoil(indices: torch.Tensor | None, allocator: Any, *args: Any, **kwargs: Any) -> None:
    """Run after `alloc_decode` (or `alloc`, page size 1) -> [n] full slots: corrupt the SWA peer of the last one."""
    if indices is None:
        return
    calls = _calls[allocator] = _calls.get(allocator, 0) + 1
    if calls == HEALTHY_CALLS + 1:
        injected("swa-alloc-oob")
        beyond = allocator.size_swa + allocator.page_size
        allocator.full_to_swa_index_mapping[indices[-1]] = beyond


def fail_swa_side(original: Callable[..., Any], allocator: Any, seq_lens: torch.Tensor, *args: Any, **kw: Any) -> Any:
    """Run around `alloc_decode`: the first call that needs a page gets it on one side."""
    fault = "alloc-on-one-pool"
    if fault in _done or not bool((seq_lens % allocator.page_size == 1).any()):
        return original(allocator, seq_lens, *args, **kw)
    _done.add(fault)
    injected(fault)
    swa = allocator.swa_attn_allocator
    swa.alloc_decode = lambda *args, **kw: None
    try:
        return original(allocator, seq_lens, *args, **kw)
    finally:
        del swa.alloc_decode


def keep_mapping(original: Callable[..., Any], allocator: Any, free_index: torch.Tensor, **named: Any) -> Any:
    """Run around `free_swa(free_index)`, [n] full slots, and around `free_swa_segment` of later releases."""
    mapping = allocator.full_to_swa_index_mapping
    before = mapping[free_index].clone()
    result = original(allocator, free_index, **named)
    mapping[free_index] = before
    if free_index.numel():
        injected("stale-mapping")
    return result


def free_unset_entry(req: Any, tree_cache: Any, *args: Any, **kwargs: Any) -> None:
    """Run before `release_kv_cache`: free the last entry of the row, far beyond the request's tokens."""
    row_index = held(req).req_pool_idx
    if row_index is not None:
        injected("free-of-page-zero")
        row = tree_cache.req_to_token_pool.req_to_token[row_index]
        tree_cache.token_to_kv_pool_allocator.free(row[-1:])


def replace_before_flush(original: Callable[..., Any], allocator: Any) -> Any:
    """Run around `free_group_end()`: what tombstone recovery does to one page of the group."""
    from gemma4_runtime.release import SWATokenToKVPoolAllocator

    fault = "deferred-free-after-replacement"
    if isinstance(allocator, SWATokenToKVPoolAllocator) and allocator.free_group and fault not in _done:
        mapping, page_size = allocator.full_to_swa_index_mapping, allocator.page_size
        slots = torch.cat(allocator.free_group)
        mapped = slots[mapping[slots] > 0]
        replacement = allocator.swa_attn_allocator.alloc(page_size) if mapped.numel() else None
        if replacement is not None:
            page = int(mapped[0]) // page_size
            mapping[page * page_size : (page + 1) * page_size] = replacement
            _done.add(fault)
            injected(fault)
    return original(allocator)


def understate_evicted(original: Callable[..., Any], cache: Any, params: Any) -> Any:
    """Run around `SWARadixCache.insert(params)`."""
    fault = "page-over-count"
    evicted = swa_evicted_of(params)
    if fault not in _done and evicted > params.prev_prefix_len:
        _done.add(fault)
        injected(fault)
        params = with_swa_evicted(params, evicted - cache.page_size)
    return original(cache, params)
