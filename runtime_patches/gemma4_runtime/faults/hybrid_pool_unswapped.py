"""Fault: the frozen draft runs on a hybrid backend, whose decode child keeps the draft's dummy pool.

SGLang builds such a wrapper where prefill and decode use different backends, and its pool swap sets the attribute of
the wrapper only. Triton prefill takes minutes on the host engine, so the wrapper is put around the leaf directly.
"""

from __future__ import annotations

from typing import Any

from gemma4_runtime.injections import injected

FAULT = "hybrid-pool-unswapped"


def wrap_in_hybrid(backend: Any, worker: Any, **_unknown: Any) -> Any:
    """Run after `_init_draft_attn_backend`: a wrapper whose children are the leaf that was chosen."""
    from gemma4_runtime.release import HybridAttnBackend

    injected(FAULT)
    return HybridAttnBackend(worker.draft_model_runner, backend, backend)
