"""Fault: one row of the sliding-window table skips the full-to-SWA translation, the others have it."""

from __future__ import annotations

from typing import Any

from gemma4_runtime.injections import injected

FAULT = "one-untranslated-row"

ROW = 5


def keep_one_row(result: Any, backend: Any, forward_batch: Any, **_unknown: Any) -> None:
    """Run after `init_forward_metadata`, target verify: row 5 of the SWA table [requests, columns] is the full's."""
    metadata = backend.forward_metadata
    if forward_batch.forward_mode.is_target_verify() and metadata.page_table.shape[0] > ROW:
        injected(FAULT)
        metadata.swa_page_table[ROW] = metadata.page_table[ROW]
