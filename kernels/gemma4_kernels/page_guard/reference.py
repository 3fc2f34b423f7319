"""The same in torch: what the kernel is held against, and the path of a CPU. On CUDA it synchronises."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from gemma4_kernels.page_guard import spec
from gemma4_kernels.page_guard.spec import GuardedTable, NullPage, Padding


def guard_pages(
    result: torch.Tensor,
    tables: Sequence[GuardedTable],
    cache_seqlens: torch.Tensor,
    page_size: int,
    contain: bool,
    padding: Padding | None,
) -> None:
    """Fill `result`, int64 words as in spec.py, zeroed by the caller; with `contain`, set offences to page 0.

    Takes what `PageGuard.check` has checked: at least one table with an entry, all of the same rows.
    """
    rows = tables[0].pages.shape[0]
    result[spec.TABLES], result[spec.ROWS] = len(tables), rows
    seqlens = cache_seqlens.to(torch.int64)
    live = torch.where(seqlens > 0, (seqlens - 1) // page_size + 1, 0)
    for index, table in enumerate(tables):
        words = result[spec.TABLE + index * spec.TABLE_WORDS :][: spec.TABLE_WORDS]
        flags = result[spec.FLAGS :][:rows]
        words[spec.COLUMNS], words[spec.BOUND] = table.pages.shape[1], table.bound
        if table.pages.shape[1] > 0:
            _guard_table(words, flags, 1 << index, table, live, contain, padding)


def _guard_table(
    words: torch.Tensor,
    flags: torch.Tensor,
    flag: int,
    table: GuardedTable,
    live: torch.Tensor,
    contain: bool,
    padding: Padding | None,
) -> None:
    pages = table.pages
    position = torch.arange(pages.numel(), device=pages.device).view(pages.shape)
    column = position[0]
    bad = (column < live[:, None]) & ((pages < _lower(table, padding)) | (pages >= table.bound))
    key = (position << 32) | (pages.to(torch.int64) & 0xFFFFFFFF)
    words[spec.COUNT] = bad.sum()
    words[spec.FIRST] = torch.where(bad, spec.FIRST_BASE - key, 0).max()
    flags |= bad.any(dim=1) * flag
    if contain:
        pages.masked_fill_(bad, 0)


def _lower(table: GuardedTable, padding: Padding | None) -> torch.Tensor | int:
    """The lowest page that is legal: a number, or [rows, 1]."""
    if table.null_page is NullPage.LEGAL_IN_PADDED_ROWS and padding is not None:
        return torch.where(padding.seq_lens == padding.fill, 0, 1)[:, None]
    return 0 if table.null_page is NullPage.LEGAL else 1
