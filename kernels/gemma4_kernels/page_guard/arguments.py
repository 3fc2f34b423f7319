"""What a check may be asked to do: shapes, dtypes, devices, bounds, and no shared memory where it writes."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch

from gemma4_kernels.page_guard import spec
from gemma4_kernels.page_guard.spec import Guarded, GuardedSlots, GuardedTable, Kind, NullPage, Padding

_INTEGERS = (torch.int32, torch.int64)


def kind_of(array: Guarded) -> Kind:
    if isinstance(array, GuardedTable):
        return Kind.TABLE
    return Kind.SLOTS if array.indptr is None else Kind.RAGGED_SLOTS


def rows_of(arrays: Sequence[Guarded], cache_seqlens: torch.Tensor | None) -> int:
    """Return the rows that the arguments imply: an array's own, else cache_seqlens', else the first indptr's."""
    for array in arrays:
        if kind_of(array) is not Kind.RAGGED_SLOTS and array[0].dim() > 0:
            return array[0].shape[0]
    if cache_seqlens is not None and cache_seqlens.dim() > 0:
        return cache_seqlens.shape[0]
    indptrs = [array.indptr for array in arrays if isinstance(array, GuardedSlots) and array.indptr is not None]
    return indptrs[0].numel() - 1 if indptrs else 0


def validate(
    arrays: Sequence[Guarded],
    cache_seqlens: torch.Tensor | None,
    page_size: int,
    padding: Padding | None,
    rows: int,
    device: torch.device,
) -> None:
    """Raises ValueError for what a `PageGuard` cannot check."""
    if not 1 <= len(arrays) <= spec.MAX_ARRAYS:
        raise ValueError(f"{len(arrays)} arrays, expected 1..{spec.MAX_ARRAYS}")
    if not 1 <= page_size <= spec.MAX_BOUND:
        raise ValueError(f"page_size is {page_size}, expected 1..{spec.MAX_BOUND}")
    if not 0 <= rows <= spec.MAX_ROWS:
        raise ValueError(f"{rows} rows, expected 0..{spec.MAX_ROWS}")
    for index, array in enumerate(arrays):
        _validate_array(index, array, rows, padding, device)
    if cache_seqlens is not None:
        _validate_lengths("cache_seqlens", cache_seqlens, rows, device)
    elif any(isinstance(array, GuardedTable) for array in arrays):
        raise ValueError("cache_seqlens is None, and which columns of a table are live goes by it")
    if padding is not None:
        _validate_lengths("padding.seq_lens", padding.seq_lens, rows, device)


def _validate_array(index: int, array: Guarded, rows: int, padding: Padding | None, device: torch.device) -> None:
    entries, kind = array[0], kind_of(array)
    ragged = kind is Kind.RAGGED_SLOTS
    shape_is_right = entries.dim() == 1 if ragged else entries.dim() == 2 and entries.shape[0] == rows
    if not shape_is_right or entries.dtype not in _INTEGERS or entries.device != device:
        expected = {Kind.TABLE: f"[{rows}, columns]", Kind.SLOTS: f"[{rows}, per_row], or [n] with indptr,"}
        raise ValueError(
            f"array {index} is {list(entries.shape)} {entries.dtype} on {entries.device}, "
            f"expected {expected.get(kind, '[n], because it has an indptr,')} int32 or int64 on {device}"
        )
    if isinstance(array, GuardedSlots) and array.indptr is not None:
        indptr = array.indptr
        wrong = indptr.dim() != 1 or indptr.shape[0] <= rows
        if wrong or indptr.dtype not in _INTEGERS or indptr.device != device:
            raise ValueError(
                f"array {index}: indptr is {list(indptr.shape)} {indptr.dtype} on {indptr.device}, "
                f"expected [{rows + 1} or more] int32 or int64 on {device}"
            )
    if not 1 <= array.bound <= spec.MAX_BOUND:
        raise ValueError(f"array {index}: bound is {array.bound}, expected 1..{spec.MAX_BOUND}")
    if isinstance(array, GuardedTable) and not -1 <= array.window_keys <= spec.MAX_BOUND:
        raise ValueError(f"array {index}: window_keys is {array.window_keys}, expected 0 or more, or -1 for no window")
    if array.null_page is NullPage.LEGAL_IN_PADDED_ROWS and padding is None:
        raise ValueError(f"array {index}: null page legal in padded rows, and no padding says which these are")


def _validate_lengths(name: str, lengths: torch.Tensor, rows: int, device: torch.device) -> None:
    if lengths.shape != (rows,) or lengths.dtype not in _INTEGERS or lengths.device != device:
        raise ValueError(
            f"{name} is {list(lengths.shape)} {lengths.dtype} on {lengths.device}, "
            f"expected [{rows}] int32 or int64 on {device}"
        )


def refuse_shared_memory(arrays: Sequence[Guarded]) -> None:
    """Strict: also refuses views that interleave without meeting, which no page table does."""
    spans = []
    for index, array in enumerate(arrays):
        entries = array[0]
        if entries.numel() == 0:
            continue
        reach = 0
        for stride, size in sorted(zip(entries.stride(), entries.shape, strict=True)):
            if size > 1 and stride <= reach:
                raise ValueError(
                    f"array {index} has strides {entries.stride()}: entries that share memory cannot be contained"
                )
            reach += stride * (size - 1)
        start = entries.data_ptr()
        spans.append((start, start + (reach + 1) * entries.element_size(), index))
    spans.sort()
    for (_, end, low), (start, _, high) in itertools.pairwise(spans):
        if start < end:
            raise ValueError(
                f"arrays {low} and {high} share memory and cannot be contained together: "
                f"give one of them, with the smaller bound"
            )
