"""Fault: a finished request tells the prefix cache that one page less of its SWA KV was evicted than there was, once.

The cache then counts that page as evictable although the SWA pool has it back: the sums exceed the pool by one page.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from gemma4_runtime.injections import injected

FAULT = "page-over-count"

_understated = False


def understate_evicted(original: Callable[..., Any], cache: Any, params: Any) -> Any:
    """Run around `SWARadixCache.insert(params)`."""
    global _understated
    if not _understated and params.swa_evicted_seqlen > params.prev_prefix_len:
        _understated = True
        injected(FAULT)
        params = replace(params, swa_evicted_seqlen=params.swa_evicted_seqlen - cache.page_size)
    return original(cache, params)
