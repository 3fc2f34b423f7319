"""Fault: when all requests of a verify round finish at once, the batch keeps the verify input as its speculative state.

The verify input has no `merge_batch`: the scheduler dies as soon as a prefill is merged into that batch.
"""

from __future__ import annotations

from typing import Any

from gemma4_runtime.injections import injected

FAULT = "unmergeable-spec-info"


def leave_verify_input(worker: Any, batch: Any) -> None:
    """Run in place of `_draft_preprocess_idle`, which installs an empty draft input."""
    injected(FAULT)
