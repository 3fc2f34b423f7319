"""Fault: between a grouped free and its flush, the SWA page of the slots to be freed is replaced by another, once.

The flush looks the mapping up late, so it frees the replacement, and the first SWA page is never freed by anybody.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from gemma4_runtime.injections import injected

FAULT = "deferred-free-after-replacement"

_replaced = False


def replace_before_flush(original: Callable[..., Any], allocator: Any) -> Any:
    """Run around `free_group_end()`: what tombstone recovery does to one page of the group."""
    global _replaced
    from gemma4_runtime.release import SWATokenToKVPoolAllocator

    if isinstance(allocator, SWATokenToKVPoolAllocator) and allocator.free_group and not _replaced:
        mapping, page_size = allocator.full_to_swa_index_mapping, allocator.page_size
        slots = torch.cat(allocator.free_group)
        mapped = slots[mapping[slots] > 0]
        replacement = allocator.swa_attn_allocator.alloc(page_size) if mapped.numel() else None
        if replacement is not None:
            page = int(mapped[0]) // page_size
            mapping[page * page_size : (page + 1) * page_size] = replacement
            _replaced = True
            injected(FAULT)
    return original(allocator)
