"""Torch forms of the paged allocator's Triton kernels, which the interpreter runs slowly.

Same arguments and results as `sglang.srt.mem_cache.triton_ops.allocator`; launched the same way, `kernel[grid](...)`.
A request's new slots are: the rest of its last page, then whole free pages, then the start of one more free page.
"""

from __future__ import annotations

from collections.abc import Callable

import torch


class _Launchable:
    """Is called as `kernel[grid](...)`."""

    def __init__(self, function: Callable[..., None]) -> None:
        self._function = function

    def __getitem__(self, grid: object) -> Callable[..., None]:
        return self._function


def _alloc_extend(
    prefix_lens: torch.Tensor,
    seq_lens: torch.Tensor,
    last_loc: torch.Tensor,
    free_pages: torch.Tensor,
    out_indices: torch.Tensor,
    bs_upper: int,
    page_size: int,
) -> None:
    """prefix_lens, seq_lens, last_loc: [requests]; free_pages: [pages]; out_indices: [sum(seq - prefix)], int64."""
    written = taken = 0
    for prefix, seq, last in zip(prefix_lens.tolist(), seq_lens.tolist(), last_loc.tolist(), strict=True):
        position = torch.arange(prefix, seq)
        pages_before = -(-prefix // page_size)
        in_last_page = position < pages_before * page_size
        new_pages = -(-seq // page_size) - pages_before
        # The kernel reads past a short free list and its caller then returns None; index 0 keeps that harmless here.
        pages = torch.zeros(max(new_pages, 1), dtype=torch.int64)
        available = free_pages[taken : taken + new_pages]
        pages[: len(available)] = available
        fresh = pages[(position // page_size - pages_before).clamp(min=0)] * page_size + position % page_size
        continued = last + 1 + (position - prefix)
        out_indices[written : written + seq - prefix] = torch.where(in_last_page, continued, fresh)
        written += seq - prefix
        taken += new_pages


def _alloc_decode(
    seq_lens: torch.Tensor,
    last_loc: torch.Tensor,
    free_pages: torch.Tensor,
    out_indices: torch.Tensor,
    bs_upper: int,
    page_size: int,
) -> None:
    """seq_lens (including the new token), last_loc, out_indices: [requests]; free_pages: [pages]."""
    needs_page = (seq_lens - 1) % page_size == 0
    rank = torch.cumsum(needs_page, 0) - 1
    padded = torch.cat([free_pages, free_pages.new_zeros(len(seq_lens))])
    out_indices.copy_(torch.where(needs_page, padded[rank.clamp(min=0)] * page_size, last_loc + 1))


alloc_extend_kernel = _Launchable(_alloc_extend)
alloc_decode_kernel = _Launchable(_alloc_decode)
