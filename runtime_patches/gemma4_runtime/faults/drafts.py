"""Faults: a draft's backend is on another pool than the target's, or a batch keeps what a draft left.

| fault                 | what                                                                                         |
|-----------------------|----------------------------------------------------------------------------------------------|
| hybrid-pool-unswapped | the frozen draft runs on a hybrid backend, whose decode child keeps the draft's dummy pool   |
| swa-state-stale       | its trtllm_mha backend takes its SWA state from its own pool, and not from the allocator     |
| unmergeable-spec-info | when all requests of a verify round finish at once, the batch keeps the verify input         |

SGLang builds a hybrid where prefill and decode use different backends, and its pool swap sets the attribute of the
wrapper only. Triton prefill takes minutes on the host engine, so the wrapper is put around the leaf directly.

A stale SWA state is what there was before SGLang resolved it from the allocator. The draft's pool is a non-SWA dummy,
so the backend believes that there is nothing to translate, and the assistant's sliding layers read the sliding-window
buffer with full-pool page ids: the seed bug.

A verify input has no `merge_batch`: the scheduler dies as soon as a prefill is merged into that batch.
"""

from __future__ import annotations

from typing import Any

from gemma4_runtime.injections import injected


def wrap_in_hybrid(backend: Any, worker: Any, **_unknown: Any) -> Any:
    """Run after `_init_draft_attn_backend`: a wrapper whose children are the leaf that was chosen."""
    from gemma4_runtime.release import HybridAttnBackend

    injected("hybrid-pool-unswapped")
    return HybridAttnBackend(worker.draft_model_runner, backend, backend)


def resolve_from_active_pool(model_runner: Any) -> Any:
    """Return the active pool if it is an SWA pool, in place of `TRTLLMHAAttnBackend._resolve_swa_kv_pool`."""
    from gemma4_runtime.release import SWAKVPool

    pool = model_runner.token_to_kv_pool
    if isinstance(pool, SWAKVPool):
        return pool
    injected("swa-state-stale")
    return None


def leave_verify_input(worker: Any, batch: Any) -> None:
    """Run in place of `_draft_preprocess_idle`, which installs an empty draft input."""
    injected("unmergeable-spec-info")
