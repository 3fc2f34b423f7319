"""Fault: `free_swa` gives the SWA pages back and leaves the full-to-SWA mapping as it was.

Whoever frees these full slots next frees the SWA pages again, which by then may belong to another request.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from gemma4_runtime.injections import injected

FAULT = "stale-mapping"


def keep_mapping(original: Callable[..., Any], allocator: Any, free_index: torch.Tensor, **named: Any) -> Any:
    """Run around `free_swa(free_index)`, [n] full slots, and around `free_swa_segment` of later releases."""
    mapping = allocator.full_to_swa_index_mapping
    before = mapping[free_index].clone()
    result = original(allocator, free_index, **named)
    mapping[free_index] = before
    if free_index.numel():
        injected(FAULT)
    return result
