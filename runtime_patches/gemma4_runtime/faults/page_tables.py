"""Faults: entries of the page tables of trtllm_mha's target verifications are wrong.

| fault                | what                                                                                          |
|----------------------|-----------------------------------------------------------------------------------------------|
| negative-page        | a live entry of the full table holds -1, the mark of an index that was never assigned: legal  |
|                      | as the last location of an empty prefix alone; a kernel that reads it reads before the pool   |
| page-past-the-end    | a live entry of the sliding table names the first page that the buffer does not have: ids run |
|                      | from 1 to the number of pages, and somebody counts one further                                |
| one-untranslated-row | one row of the sliding table skips the full-to-SWA translation, the others have it            |
"""

from __future__ import annotations

from typing import Any

from gemma4_runtime.injections import injected

HEALTHY_BUILDS = 3
ROW = 5
_builds = {"negative-page": 0, "page-past-the-end": 0}


def _is_its_turn(fault: str, forward_batch: Any) -> bool:
    """Say so from the 4th target verify on."""
    if not forward_batch.forward_mode.is_target_verify():
        return False
    _builds[fault] += 1
    if _builds[fault] > HEALTHY_BUILDS:
        injected(fault)
        return True
    return False


def leave_unassigned(result: Any, backend: Any, forward_batch: Any, **_unknown: Any) -> None:
    """Run after `init_forward_metadata`: spoil the last row's last live column."""
    if _is_its_turn("negative-page", forward_batch):
        metadata = backend.forward_metadata
        metadata.page_table[-1, (int(metadata.cache_seqlens_int32[-1]) - 1) // backend.page_size] = -1


def point_past_the_end(result: Any, backend: Any, forward_batch: Any, **_unknown: Any) -> None:
    """Run after `init_forward_metadata`: spoil the first row's last live column."""
    if _is_its_turn("page-past-the-end", forward_batch):
        metadata, page_size = backend.forward_metadata, backend.page_size
        pages_in_buffer = backend.token_to_kv_pool.swa_kv_pool.k_buffer[0].shape[0] // page_size
        metadata.swa_page_table[0, (int(metadata.cache_seqlens_int32[0]) - 1) // page_size] = pages_in_buffer


def keep_one_row(result: Any, backend: Any, forward_batch: Any, **_unknown: Any) -> None:
    """Run after `init_forward_metadata`, target verify: row 5 of the SWA table [requests, columns] is the full's."""
    metadata = backend.forward_metadata
    if forward_batch.forward_mode.is_target_verify() and metadata.page_table.shape[0] > ROW:
        injected("one-untranslated-row")
        metadata.swa_page_table[ROW] = metadata.page_table[ROW]
