"""Fault: a finished request also frees an entry of its row that was never written, which holds slot 0.

Page 0 is the dummy that padded tokens write to. Once in the free list, it is handed out like any other.
"""

from __future__ import annotations

from typing import Any

from gemma4_runtime.injections import injected
from gemma4_runtime.release.requests import held

FAULT = "free-of-page-zero"


def free_unset_entry(req: Any, tree_cache: Any, *args: Any, **kwargs: Any) -> None:
    """Run before `release_kv_cache`: free the last entry of the row, far beyond the request's tokens."""
    row_index = held(req).req_pool_idx
    if row_index is not None:
        injected(FAULT)
        row = tree_cache.req_to_token_pool.req_to_token[row_index]
        tree_cache.token_to_kv_pool_allocator.free(row[-1:])
