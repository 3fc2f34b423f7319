"""Check the live part of a page table against the buffer that it indexes."""

from __future__ import annotations

import torch

from gemma4_runtime.checks.violation import MAX_LISTED, BadIndex, Violation


def check_page_bounds(
    table: torch.Tensor,
    cache_seqlens: torch.Tensor,
    page_size: int,
    buffer_pages: int,
    null_page_legal: torch.Tensor | bool,
) -> Violation | None:
    """Report live page ids outside the buffer.

    A row is live up to column ceil(cache_seqlens / page_size); later columns are stale or uninitialised and are not
    looked at. The null page 0 is a violation in a live column unless `null_page_legal` says otherwise.

    Args:
        table: [rows, columns] integer page ids, any strides.
        cache_seqlens: [rows] keys per row, the query's own included.
        page_size: tokens per page.
        buffer_pages: pages in the buffer, dummy page 0 included: ids must be below it.
        null_page_legal: True, False, or [rows] bool.

    Returns: the violation with the lowest (row, column) first, or None. One device synchronisation.
    """
    rows, columns = table.shape
    if rows == 0 or columns == 0:
        return None
    live_columns = -(-cache_seqlens.to(torch.int64) // page_size)
    live = torch.arange(columns, device=table.device)[None, :] < live_columns[:, None]
    legal = torch.as_tensor(null_page_legal, device=table.device).expand(rows)
    lower = (~legal).to(torch.int64)[:, None]
    bad = live & ((table < lower) | (table >= buffer_pages))
    where = bad.nonzero()
    count = where.shape[0]
    if count == 0:
        return None
    where = where[:MAX_LISTED].cpu()
    values = table[where[:, 0].to(table.device), where[:, 1].to(table.device)].tolist()
    lowers = lower.squeeze(1)[where[:, 0].to(table.device)].tolist()
    listed = tuple(
        BadIndex(row, column, value, low, buffer_pages)
        for (row, column), value, low in zip(where.tolist(), values, lowers, strict=True)
    )
    first = listed[0].value
    verdict = "negative" if first < 0 else "null_page_live" if first < buffer_pages else "out_of_range"
    return Violation(verdict, listed, count)
