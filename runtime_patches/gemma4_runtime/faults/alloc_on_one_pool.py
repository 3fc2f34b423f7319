"""Fault: `alloc_decode` gets its page from the full pool and none from the SWA pool, once.

It then gives nothing, and does not give back what it took: the full page is lost. With page_size 1 SGLang takes slots
by `alloc`, which asks both pools before it takes anything: there this defect cannot be.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from gemma4_runtime.injections import injected

FAULT = "alloc-on-one-pool"

_failed = False


def fail_swa_side(original: Callable[..., Any], allocator: Any, seq_lens: torch.Tensor, *args: Any, **kw: Any) -> Any:
    """Run around `alloc_decode`: the first call that needs a page gets it on one side."""
    global _failed
    if _failed or not bool((seq_lens % allocator.page_size == 1).any()):
        return original(allocator, seq_lens, *args, **kw)
    _failed = True
    injected(FAULT)
    swa = allocator.swa_attn_allocator
    swa.alloc_decode = lambda *args, **kw: None
    try:
        return original(allocator, seq_lens, *args, **kw)
    finally:
        del swa.alloc_decode
