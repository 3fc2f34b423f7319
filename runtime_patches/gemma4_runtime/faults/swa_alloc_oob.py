"""Fault: the SWA allocator hands out an index beyond its pool, once, after a number of decode allocations.

The last token of the batch is mapped to the first slot past the sliding-window buffer. Everything before looks
healthy, so what is tested is that the trap fires at the hand-out and not at the far later write or read.
"""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

import torch

from gemma4_runtime.injections import injected

FAULT = "swa-alloc-oob"

HEALTHY_CALLS = 8
_calls: WeakKeyDictionary[Any, int] = WeakKeyDictionary()


def spoil(indices: torch.Tensor | None, allocator: Any, *args: Any, **kwargs: Any) -> None:
    """Run after `alloc_decode` (or `alloc`, page size 1) -> [n] full slots: corrupt the SWA peer of the last one."""
    if indices is None:
        return
    calls = _calls[allocator] = _calls.get(allocator, 0) + 1
    if calls == HEALTHY_CALLS + 1:
        injected(FAULT)
        beyond = allocator.size_swa + allocator.page_size
        allocator.full_to_swa_index_mapping[indices[-1]] = beyond
