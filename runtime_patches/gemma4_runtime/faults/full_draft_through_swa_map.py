"""Fault: the draft's full-attention layers read the full buffer with page ids that went through the full-to-SWA map.

Every id is in range, since the SWA pool is the smaller one: nothing crashes, the draft just reads strangers' keys.
"""

from __future__ import annotations

from typing import Any
from weakref import WeakSet

from gemma4_runtime.injections import injected

FAULT = "full-draft-through-swa-map"

_draft_backends: WeakSet[Any] = WeakSet()


def remember_draft(result: Any, backend: Any, model_runner: Any, *args: Any, **kwargs: Any) -> None:
    """Run after `TRTLLMHAAttnBackend.__init__`."""
    if model_runner.is_draft_worker:
        _draft_backends.add(backend)


def take_swa_table(page_table: Any, backend: Any, layer: Any, forward_batch: Any, **_unknown: Any) -> Any:
    """Run after `_get_layer_page_table`: the draft gets the sliding-window table for every layer."""
    translated = backend.forward_metadata.swa_page_table
    if backend not in _draft_backends or translated is None:
        return page_table
    injected(FAULT)
    return translated
