"""Fault: the full pool that the draft reads has fewer slots than the allocator hands out.

In SGLang the draft's pool was sized before the target's grew at the expense of its SWA pool. A frozen draft reads the
target's own pool, so it is given a shortened view of that: same keys, earlier end.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

from gemma4_runtime.injections import injected

FAULT = "draft-pool-too-small"

PAGES = 8


def shorten_pool(result: Any, worker: Any, **_unknown: Any) -> None:
    """Run after `_bind_kv_context`: 8 pages of the full pool are left, the dummy page 0 included."""
    pool = copy.copy(worker.kv_context.target_token_to_kv_pool)
    full = pool.full_kv_pool = copy.copy(pool.full_kv_pool)
    slots = PAGES * full.page_size
    full.size = slots - full.page_size
    full.k_buffer = [buffer[:slots] for buffer in full.k_buffer]
    full.v_buffer = [buffer[:slots] for buffer in full.v_buffer]
    injected(FAULT)
    worker.kv_context = replace(worker.kv_context, target_token_to_kv_pool=pool)
