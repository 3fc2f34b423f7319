"""The same in torch: what the kernel is held against, and the path of a CPU. On CUDA it synchronises."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from gemma4_kernels.page_guard import spec
from gemma4_kernels.page_guard.spec import Guarded, GuardedTable, NullPage, Padding


class _Rows(NamedTuple):
    """What the rows of one array use.

    Attributes:
        first: [rows, 1] position in `entries` of each row's first live entry.
        live: [rows, 1] columns.
        needed: [rows], see spec.py.
        real_from: [rows, 1], columns below it may be the null page.
        null_slots: entries of the null page.
    """

    first: torch.Tensor
    live: torch.Tensor
    needed: torch.Tensor
    real_from: torch.Tensor
    null_slots: int


def guard_arrays(
    result: torch.Tensor,
    arrays: Sequence[Guarded],
    rows: int,
    splits: int,
    cache_seqlens: torch.Tensor | None,
    page_size: int,
    contain: bool,
    padding: Padding | None,
) -> None:
    """Fill `result`, int64 words as in spec.py, on the host and 0 before; with `contain`, set offences to 0.

    Takes what `PageGuard.prepare` has validated, with at least one row.
    """
    lanes = result[spec.LANES :].view(len(arrays), rows, splits, spec.LANE_WORDS)
    for index, array in enumerate(arrays):
        entries, used = array[0], _rows(array, rows, cache_seqlens, page_size, padding)
        lanes[index, :, 0, spec.NEEDED] = used.needed
        width = int(used.live.max())
        if width > 0:
            _guard_array(lanes[index], entries, array.bound, used, width, contain)
        if lanes[index].any():
            words = result[spec.ARRAY + index * spec.ARRAY_WORDS :]
            words[spec.COLUMNS], words[spec.BOUND] = entries.shape[-1], array.bound
            result[: spec.ARRAY] = torch.tensor([1, len(arrays), rows, splits])


def _guard_array(
    lanes: torch.Tensor, entries: torch.Tensor, bound: int, used: _Rows, width: int, contain: bool
) -> None:
    column = torch.arange(width, device=entries.device)[None, :]
    live = column < used.live
    # In ragged slots the dead places of a short row are its neighbours': masked, and cut to what there is.
    places = (used.first + column).clamp(max=entries.shape[-1] - 1)
    values = (entries[:, :width] if entries.dim() == 2 else entries[places]).to(torch.int64)
    lower = torch.where(column < used.real_from, 0, used.null_slots)
    bad = live & ((values < lower) | (values >= bound))
    if not bad.any():
        return
    splits = lanes.shape[1]
    for split in range(splits):
        mine = bad & ((column // spec.BLOCK) % splits == split)
        found = mine.any(dim=1)
        first = mine.to(torch.int8).argmax(dim=1, keepdim=True)
        words = [mine.sum(dim=1, keepdim=True), first, values.gather(1, first), lower.expand_as(bad).gather(1, first)]
        lanes[:, split, : spec.NEEDED] = torch.where(found[:, None], torch.cat(words, dim=1), 0)
    if contain and entries.dim() == 2:
        entries[:, :width].masked_fill_(bad, 0)
    elif contain:
        entries[places[bad]] = 0


def _rows(
    array: Guarded, rows: int, cache_seqlens: torch.Tensor | None, page_size: int, padding: Padding | None
) -> _Rows:
    device = array[0].device
    zeros = torch.zeros(rows, dtype=torch.int64, device=device)
    first, needed, left_by_window, null_slots = zeros, zeros, zeros, page_size
    have = array[0].shape[-1]
    if isinstance(array, GuardedTable):
        assert cache_seqlens is not None
        seqlens = cache_seqlens.to(torch.int64).clamp(min=0)
        used = torch.where(seqlens > 0, (seqlens - 1) // page_size + 1, 0)
        needed, live = torch.where(used > have, used, 0), used.clamp(max=have)
        if array.window_keys >= 0:
            left_by_window = (seqlens - array.window_keys).clamp(min=0) // page_size
        null_slots = 1
    elif array.indptr is not None:
        start, end = (array.indptr[at : at + rows].to(torch.int64) for at in (0, 1))
        wrong = torch.where((start < 0) | (end < start), spec.NO_SIZE_WOULD_DO, 0)
        needed = torch.where(end > have, end, wrong)
        first = start.clamp(0, have)
        live = torch.maximum(end, first).clamp(max=have) - first
    else:
        live = zeros + have
    real_from = torch.where(_null_legal(array.null_page, zeros, padding), 2**63 - 1, left_by_window)
    return _Rows(first[:, None], live[:, None], needed, real_from[:, None], null_slots)


def _null_legal(null_page: NullPage, zeros: torch.Tensor, padding: Padding | None) -> torch.Tensor:
    if null_page is NullPage.LEGAL_IN_PADDED_ROWS and padding is not None:
        return padding.seq_lens.to(torch.int64) == padding.fill
    return torch.full_like(zeros, null_page is NullPage.LEGAL, dtype=torch.bool)
