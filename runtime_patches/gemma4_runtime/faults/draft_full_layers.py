"""Faults: the draft's full-attention layers read the full buffer wrongly.

| fault                      | what                                                                                    |
|----------------------------|-----------------------------------------------------------------------------------------|
| draft-pool-too-small       | the full pool that they read has fewer slots than the allocator hands out               |
| full-draft-through-swa-map | they read it with page ids that went through the full-to-SWA map                        |

In SGLang the draft's pool was sized before the target's grew at the expense of its SWA pool. A frozen draft reads the
target's own pool, so it is given a shortened view of that: same keys, earlier end.

Translated ids are all in range, since the SWA pool is the smaller one: nothing crashes, the draft just reads strangers'
keys.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any
from weakref import WeakSet

from gemma4_runtime.injections import injected

PAGES = 8
_draft_backends: WeakSet[Any] = WeakSet()


def shorten_pool(result: Any, worker: Any, **_unknown: Any) -> None:
    """Run after `_bind_kv_context`: 8 pages of the full pool are left, the dummy page 0 included."""
    pool = copy.copy(worker.kv_context.target_token_to_kv_pool)
    full = pool.full_kv_pool = copy.copy(pool.full_kv_pool)
    slots = PAGES * full.page_size
    full.size = slots - full.page_size
    full.k_buffer = [buffer[:slots] for buffer in full.k_buffer]
    full.v_buffer = [buffer[:slots] for buffer in full.v_buffer]
    injected("draft-pool-too-small")
    worker.kv_context = replace(worker.kv_context, target_token_to_kv_pool=pool)


def remember_draft(result: Any, backend: Any, model_runner: Any, *args: Any, **kwargs: Any) -> None:
    """Run after `TRTLLMHAAttnBackend.__init__`."""
    if model_runner.is_draft_worker:
        _draft_backends.add(backend)


def take_swa_table(page_table: Any, backend: Any, layer: Any, forward_batch: Any, **_unknown: Any) -> Any:
    """Run after `_get_layer_page_table`: the draft gets the sliding-window table for every layer."""
    translated = backend.forward_metadata.swa_page_table
    if backend not in _draft_backends or translated is None:
        return page_table
    injected("full-draft-through-swa-map")
    return translated
