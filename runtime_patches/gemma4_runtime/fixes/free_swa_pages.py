"""Fix: when `free_swa` gives an SWA page back, no entry of the full-to-SWA mapping leads into it any more.

SGLang releases whole pages and clears the entries of the slots that it was told of. Under spec v2 a request's last page
has slots behind its last token, allocated ahead, which nobody names when the page goes. Fixed upstream in 0.5.14.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def around_free_swa(original: Callable[..., Any], allocator: Any, free_index: torch.Tensor) -> Any:
    """Run around `free_swa(free_index)`, [n] full slots."""
    page = allocator.page_size
    if page == 1 or free_index.numel() == 0:
        return original(allocator, free_index)
    mapping = allocator.full_to_swa_index_mapping
    gone = torch.zeros(allocator.size_swa // page + 2, dtype=torch.bool, device=mapping.device)
    # A Python value that is assigned is copied to the device first, and the host waits for that; a fill does not.
    gone.index_fill_(0, mapping[free_index] // page, True)
    # What was not mapped names no page.
    gone[:1].fill_(False)
    result = original(allocator, free_index)
    if free_index.numel() * page >= mapping.numel():
        mapping.copy_(torch.where(gone[mapping // page], 0, mapping))
        return result
    # Every slot of the pages that were named, once per name: to count each page once the host would have to wait.
    firsts = free_index.to(torch.int64) // page * page
    slots = firsts[:, None] + torch.arange(page, device=firsts.device)
    peers = mapping[slots]
    # A full page may have a second SWA page, if its window began in its middle; that one stays.
    mapping[slots] = torch.where(gone[peers // page], 0, peers)
    return result
