"""Patch `aged-pools`: both KV pools hand out ids in shuffled orders from the start, as after hours.

A new pair of pools hands out equal ids: page 3 of the full pool goes with page 3 of the SWA pool. While that lasts, a
table that was not translated, or twice, looks right. Nothing is checked here; probes see a wrong translation in its
first step, not in an hour.

The orders follow from a seed, on every rank and at every start. SGLang sorts free pages where its arguments say so.

Cost: two permutations at the start and after each flush.
"""

from __future__ import annotations

from typing import Any

import torch

from gemma4_runtime import current
from gemma4_runtime.errors import VerificationFailed

PATCH = "aged-pools"


def after_clear(result: Any, allocator: Any, **_unknown: Any) -> None:
    """Run after `SWATokenToKVPoolAllocator.clear`, which its constructor calls too: every page is free then."""
    seed = current.settings().pool_seed
    # The pools of one pair have orders of their own, because one order would keep their ids equal.
    for number, name in enumerate(("full_attn_allocator", "swa_attn_allocator")):
        pages = getattr(getattr(allocator, name, None), "free_pages", None)
        if isinstance(pages, torch.Tensor):
            getattr(allocator, name).free_pages = shuffled(pages, seed, number)
    current.note_decision(PATCH, f"the ids of both pools are shuffled, seed {seed}")


def shuffled(pages: torch.Tensor, seed: int, pool: int) -> torch.Tensor:
    """Return free pages in an order of the seed and the pool's number alone."""
    generator = torch.Generator().manual_seed(2 * seed + pool)
    return pages[torch.randperm(pages.numel(), generator=generator).to(pages.device)]


def self_test() -> None:
    """Shuffle a list: nothing is lost, and the two pools get orders of their own.

    Raises:
        VerificationFailed: a page is missing, or the orders are equal.
    """
    pages = torch.arange(1, 65)
    full, swa = shuffled(pages, 1, 0), shuffled(pages, 1, 1)
    if not all(torch.equal(order.sort().values, pages) for order in (full, swa)) or torch.equal(full, swa):
        raise VerificationFailed(f"{PATCH}: self test: the shuffled lists are {full.tolist()} and {swa.tolist()}")
