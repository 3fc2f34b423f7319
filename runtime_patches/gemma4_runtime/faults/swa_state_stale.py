"""Fault: the draft's trtllm_mha backend takes its SWA state from its own pool, and not from the allocator.

So it was before SGLang resolved it from the allocator. The draft's pool is a non-SWA dummy, so the backend believes
that there is nothing to translate, and the assistant's sliding layers read the sliding-window buffer with full-pool
page ids: the seed bug.
"""

from __future__ import annotations

from typing import Any

from gemma4_runtime.injections import injected

FAULT = "swa-state-stale"


def resolve_from_active_pool(model_runner: Any) -> Any:
    """Return the active pool if it is an SWA pool, in place of `TRTLLMHAAttnBackend._resolve_swa_kv_pool`."""
    from gemma4_runtime.release import SWAKVPool

    pool = model_runner.token_to_kv_pool
    if isinstance(pool, SWAKVPool):
        return pool
    injected(FAULT)
    return None
