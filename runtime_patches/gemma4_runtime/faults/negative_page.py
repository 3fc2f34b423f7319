"""Fault: a live entry of the full table holds -1, the mark of an index that was never assigned.

-1 is legal as the last location of an empty prefix and nowhere else; a kernel that reads page -1 reads before the pool.
"""

from __future__ import annotations

from typing import Any

from gemma4_runtime.injections import injected

FAULT = "negative-page"

HEALTHY_BUILDS = 3
_builds = 0


def leave_unassigned(result: Any, backend: Any, forward_batch: Any, **_unknown: Any) -> None:
    """Run after `init_forward_metadata`, target verify: from the 4th on, spoil the last row's last live column."""
    global _builds
    if not forward_batch.forward_mode.is_target_verify():
        return
    _builds += 1
    if _builds > HEALTHY_BUILDS:
        injected(FAULT)
        metadata = backend.forward_metadata
        metadata.page_table[-1, (int(metadata.cache_seqlens_int32[-1]) - 1) // backend.page_size] = -1
