"""Fault: one live entry of the sliding-window table names the first page that the sliding-window buffer does not have.

The classic error of a pool's end: ids run from 1 to the number of pages, and somebody counts one further.
"""

from __future__ import annotations

from typing import Any

from gemma4_runtime.injections import injected

FAULT = "page-past-the-end"

HEALTHY_BUILDS = 3
_builds = 0


def point_past_the_end(result: Any, backend: Any, forward_batch: Any, **_unknown: Any) -> None:
    """Run after `init_forward_metadata`, target verify: from the 4th on, spoil the first row's last live column."""
    global _builds
    if not forward_batch.forward_mode.is_target_verify():
        return
    _builds += 1
    if _builds <= HEALTHY_BUILDS:
        return
    injected(FAULT)
    metadata, page_size = backend.forward_metadata, backend.page_size
    pages_in_buffer = backend.token_to_kv_pool.swa_kv_pool.k_buffer[0].shape[0] // page_size
    metadata.swa_page_table[0, (int(metadata.cache_seqlens_int32[0]) - 1) // page_size] = pages_in_buffer
