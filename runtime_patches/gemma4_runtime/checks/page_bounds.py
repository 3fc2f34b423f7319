"""Check the live part of a page table against the buffer that it indexes."""

from __future__ import annotations

import torch

from gemma4_runtime.checks.violation import MAX_LISTED, BadIndex, Violation


def check_page_bounds(
    table: torch.Tensor,
    cache_seqlens: torch.Tensor,
    page_size: int,
    buffer_pages: int,
    null_page_until: torch.Tensor | int,
) -> Violation | None:
    """Report live page ids outside the buffer.

    A row is live up to column ceil(cache_seqlens / page_size); later columns are stale or uninitialised and are not
    looked at. The null page 0 may stand in columns below `null_page_until` (the window has left them, or the row is
    padding); in a later live column it is a violation. So is a table that ends before its row does: the kernel would
    read on into the next row.

    Args:
        table: [rows, columns] integer page ids, any strides.
        cache_seqlens: [rows] keys per row, the query's own included.
        page_size: tokens per page.
        buffer_pages: pages in the buffer, dummy page 0 included: ids must be below it.
        null_page_until: 0, or [rows]: first column of each row that must hold a real page.

    Returns: the violation with the lowest (row, column) first, or None. One device synchronisation.
    """
    rows, columns = table.shape
    if rows == 0:
        return None
    live_columns = -(-cache_seqlens.to(torch.int64) // page_size)
    column = torch.arange(columns, device=table.device)[None, :]
    real_from = torch.as_tensor(null_page_until, device=table.device).expand(rows)[:, None]
    lower = (column >= real_from).to(torch.int64)
    bad = (column < live_columns[:, None]) & ((table < lower) | (table >= buffer_pages))
    if columns < int(live_columns.max()):
        return _too_narrow(live_columns, columns)
    where = bad.nonzero()
    count = where.shape[0]
    if count == 0:
        return None
    where = where[:MAX_LISTED].cpu()
    values = table[where[:, 0].to(table.device), where[:, 1].to(table.device)].tolist()
    lowers = lower[where[:, 0].to(table.device), where[:, 1].to(table.device)].tolist()
    listed = tuple(
        BadIndex(row, column, value, low, buffer_pages)
        for (row, column), value, low in zip(where.tolist(), values, lowers, strict=True)
    )
    first = listed[0].value
    verdict = "negative" if first < 0 else "null_page_live" if first < buffer_pages else "out_of_range"
    return Violation(verdict, listed, count)


def _too_narrow(live_columns: torch.Tensor, columns: int) -> Violation:
    """Rows whose live columns do not fit; the value reported is how many columns the row needs."""
    rows = (live_columns > columns).nonzero().flatten()
    listed = tuple(
        BadIndex(row, columns, needed, 0, columns + 1)
        for row, needed in zip(rows[:MAX_LISTED].tolist(), live_columns[rows[:MAX_LISTED]].tolist(), strict=True)
    )
    return Violation("table_too_narrow", listed, rows.shape[0])
