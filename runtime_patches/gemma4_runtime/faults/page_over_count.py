"""Fault: a finished request tells the prefix cache that one page less of its SWA KV was evicted than there was, once.

The cache then counts that page as evictable although the SWA pool has it back: the sums exceed the pool by one page.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gemma4_runtime.injections import injected
from gemma4_runtime.release.prefix_caches import swa_evicted_of, with_swa_evicted

FAULT = "page-over-count"

_understated = False


def understate_evicted(original: Callable[..., Any], cache: Any, params: Any) -> Any:
    """Run around `SWARadixCache.insert(params)`."""
    global _understated
    evicted = swa_evicted_of(params)
    if not _understated and evicted > params.prev_prefix_len:
        _understated = True
        injected(FAULT)
        params = with_swa_evicted(params, evicted - cache.page_size)
    return original(cache, params)
