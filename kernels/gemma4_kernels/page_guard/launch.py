"""Guard the page tables of one metadata build: `PageGuard.check` on the device, `decode` on the host.

guard = PageGuard(max_rows, device)
host = guard.host_buffer()
tables = [GuardedTable(page_table, pages), GuardedTable(swa_page_table, swa_pages, NullPage.LEGAL)]
guard.check(tables, cache_seqlens, page_size, contain=True)
host.copy_(guard.result, non_blocking=True)
...  # up to the step's own synchronisation point
finding = decode(host)
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import torch

from gemma4_kernels.page_guard import reference, spec
from gemma4_kernels.page_guard.spec import GuardedTable, NullPage, Padding

__all__ = ["Finding", "GuardedTable", "NullPage", "Padding", "PageGuard", "decode"]

_LENGTHS = (torch.int32, torch.int64)


class Finding(NamedTuple):
    """The first offence in (table, row, column) order, and how many there were.

    bound: what `value` had to be below. counts: offences per table. rows: rows with an offence in any table.
    """

    table: int
    row: int
    column: int
    value: int
    bound: int
    counts: tuple[int, ...]
    rows: tuple[int, ...]


class PageGuard:
    """Owns the result buffer. One per stream: a check on another stream would write into the same words.

    Args:
        max_rows: the most rows that a check may have, 1..65535.
        device: where the tables are.
        path: "auto" takes the kernel on CUDA and torch elsewhere; "kernel" off CUDA needs TRITON_INTERPRET=1.

    Raises:
        ValueError: max_rows out of range, an unknown path, or a path that this device cannot run.
    """

    def __init__(
        self, max_rows: int, device: torch.device | str, path: Literal["auto", "kernel", "torch"] = "auto"
    ) -> None:
        if not 1 <= max_rows <= spec.MAX_ROWS:
            raise ValueError(f"max_rows is {max_rows}, expected 1..{spec.MAX_ROWS}")
        if path not in ("auto", "kernel", "torch"):
            raise ValueError(f"path is {path!r}, expected 'auto', 'kernel' or 'torch'")
        self.max_rows = max_rows
        # int64, [FLAGS + max_rows], words as in spec.py. The same memory for the guard's life, so a graph may hold it.
        self.result = torch.zeros(spec.FLAGS + max_rows, dtype=torch.int64, device=device)
        self._kernel = _load_kernel(self.result.is_cuda) if _takes_kernel(path, self.result) else None

    def host_buffer(self) -> torch.Tensor:
        """A buffer to copy `result` into without a synchronisation: pinned where the result is on CUDA."""
        return torch.zeros(self.result.shape, dtype=torch.int64, pin_memory=self.result.is_cuda)

    def check(
        self,
        tables: Sequence[GuardedTable],
        cache_seqlens: torch.Tensor,
        page_size: int,
        *,
        contain: bool,
        padding: Padding | None = None,
    ) -> torch.Tensor:
        """Check every live entry; leave counts, first offence and row flags in `result`, which is reset first.

        One memset and one launch on the current stream, no synchronisation; both can be captured into a CUDA graph.
        As with any Triton kernel, call it once before a capture, to compile.

        Args:
            tables: 1..4 tables with the same rows. A table that indexes two buffers takes the smaller bound.
            cache_seqlens: [rows] int32 or int64, any stride: keys per row. Columns from ceil(this / page_size) on are
                stale or uninitialised: they are neither read nor written. A length below 1 has no live column, one
                beyond the table's columns stops there.
            page_size: tokens per page. A new one compiles the kernel again.
            contain: replace offences by page 0, in place.
            padding: which rows are padded; needed for NullPage.LEGAL_IN_PADDED_ROWS.

        Returns: `result`, on the device. The next check overwrites it.

        Raises:
            ValueError: a shape, dtype, device, bound or page size that is not as above, or `contain` on tables that
                share memory, where one program would read what another has already replaced.
        """
        rows = _validate(tables, cache_seqlens, page_size, padding, self.max_rows, self.result.device)
        if contain:
            _refuse_shared_memory(tables)
        self.result.zero_()
        columns = max(table.pages.shape[1] for table in tables)
        if rows == 0 or columns == 0:
            return self.result
        if self._kernel is None:
            reference.guard_pages(self.result, tables, cache_seqlens, page_size, contain, padding)
        elif not self.result.is_cuda:
            self._launch(tables, cache_seqlens, page_size, contain, padding, rows, columns)
        else:
            # Triton launches on the current device, which need not be the tables'.
            with torch.cuda.device(self.result.device):
                self._launch(tables, cache_seqlens, page_size, contain, padding, rows, columns)
        return self.result

    def _launch(
        self,
        tables: Sequence[GuardedTable],
        cache_seqlens: torch.Tensor,
        page_size: int,
        contain: bool,
        padding: Padding | None,
        rows: int,
        columns: int,
    ) -> None:
        seq_lens, fill = padding if padding is not None else (cache_seqlens, 0)
        # Arguments of tables that are not there repeat the last one's; the grid has no program for them.
        padded = [*tables, *[tables[-1]] * (spec.MAX_TABLES - len(tables))]
        assert self._kernel is not None
        self._kernel[(-(-columns // spec.BLOCK), rows, len(tables))](
            self.result,
            cache_seqlens,
            cache_seqlens.stride(0),
            seq_lens,
            seq_lens.stride(0),
            fill,
            *(argument for table in padded for argument in _table_arguments(table)),
            PAGE_SIZE=page_size,
            CONTAIN=contain,
            BLOCK=spec.BLOCK,
        )


def decode(host_result: torch.Tensor) -> Finding | None:
    """What a check found, or None.

    Args:
        host_result: int64, a host copy of a guard's `result`, the copy completed.

    Raises:
        ValueError: it is not such a copy.
    """
    if host_result.device.type != "cpu" or host_result.dtype != torch.int64 or host_result.dim() != 1:
        raise ValueError(
            f"a result is {list(host_result.shape)} {host_result.dtype} on {host_result.device}, "
            f"expected one dimension of int64 on the host: copy it there first"
        )
    words: list[int] = host_result.tolist()
    tables, rows = (words[spec.TABLES], words[spec.ROWS]) if len(words) > spec.FLAGS else (-1, -1)
    if not 0 <= tables <= spec.MAX_TABLES or not 0 <= rows <= len(words) - spec.FLAGS:
        raise ValueError(f"{len(words)} words, {tables} tables and {rows} rows: not a page_guard result")
    found = [words[spec.TABLE + spec.TABLE_WORDS * table :][: spec.TABLE_WORDS] for table in range(tables)]
    counts = tuple(table[spec.COUNT] for table in found)
    if not any(counts):
        return None
    first = next(index for index, count in enumerate(counts) if count)
    key = spec.FIRST_BASE - found[first][spec.FIRST]
    row, column = divmod(key >> 32, found[first][spec.COLUMNS])
    value = (key & 0xFFFFFFFF) - ((key & 0x80000000) << 1)
    flagged = tuple(row for row, flag in enumerate(words[spec.FLAGS :][:rows]) if flag)
    return Finding(first, row, column, value, found[first][spec.BOUND], counts, flagged)


def _takes_kernel(path: str, result: torch.Tensor) -> bool:
    return path == "kernel" or (path == "auto" and result.is_cuda)


def _load_kernel(cuda: bool) -> Any:
    # Here, not above: the torch path, which a CPU takes, needs no Triton.
    from triton import knobs

    if not cuda and not knobs.runtime.interpret:
        raise ValueError("the kernel needs CUDA tensors, or TRITON_INTERPRET=1 set before Triton is imported")
    from gemma4_kernels.page_guard.kernel import page_guard_kernel

    return page_guard_kernel


def _table_arguments(table: GuardedTable) -> tuple[Any, ...]:
    pages = table.pages
    return (pages, pages.stride(0), pages.stride(1), pages.shape[1], table.bound, int(table.null_page))


def _validate(
    tables: Sequence[GuardedTable],
    cache_seqlens: torch.Tensor,
    page_size: int,
    padding: Padding | None,
    max_rows: int,
    device: torch.device,
) -> int:
    """The number of rows."""
    if not 1 <= len(tables) <= spec.MAX_TABLES:
        raise ValueError(f"{len(tables)} tables, expected 1..{spec.MAX_TABLES}")
    if page_size < 1:
        raise ValueError(f"page_size is {page_size}, expected 1 or more")
    rows = tables[0].pages.shape[0] if tables[0].pages.dim() else 0
    if rows > max_rows:
        raise ValueError(f"{rows} rows, and this guard was made for {max_rows}")
    for index, (pages, bound, null_page) in enumerate(tables):
        if pages.dim() != 2 or pages.dtype != torch.int32 or pages.device != device or pages.shape[0] != rows:
            raise ValueError(
                f"table {index} is {list(pages.shape)} {pages.dtype} on {pages.device}, "
                f"expected [{rows}, columns] int32 on {device}"
            )
        if pages.numel() > spec.MAX_ENTRIES:
            raise ValueError(f"table {index} has {pages.numel()} entries, expected {spec.MAX_ENTRIES} at most")
        if not 1 <= bound <= spec.MAX_BOUND:
            raise ValueError(f"table {index}: bound is {bound}, expected 1..{spec.MAX_BOUND}")
        if null_page is NullPage.LEGAL_IN_PADDED_ROWS and padding is None:
            raise ValueError(f"table {index}: null page legal in padded rows, and no padding says which these are")
    _validate_lengths("cache_seqlens", cache_seqlens, rows, device)
    if padding is not None:
        _validate_lengths("padding.seq_lens", padding.seq_lens, rows, device)
    return rows


def _validate_lengths(name: str, lengths: torch.Tensor, rows: int, device: torch.device) -> None:
    if lengths.shape != (rows,) or lengths.dtype not in _LENGTHS or lengths.device != device:
        raise ValueError(
            f"{name} is {list(lengths.shape)} {lengths.dtype} on {lengths.device}, "
            f"expected [{rows}] int32 or int64 on {device}"
        )


def _refuse_shared_memory(tables: Sequence[GuardedTable]) -> None:
    """Strict: also refuses views that interleave without meeting, which no page table does."""
    spans = []
    for index, (pages, _, _) in enumerate(tables):
        if pages.numel() == 0:
            continue
        (inner_stride, inner), (outer_stride, outer) = sorted(zip(pages.stride(), pages.shape, strict=True))
        if (inner > 1 and inner_stride == 0) or (outer > 1 and outer_stride <= inner_stride * (inner - 1)):
            raise ValueError(
                f"table {index} has strides {pages.stride()}: entries that share memory cannot be contained"
            )
        reach = (inner_stride * (inner - 1) + outer_stride * (outer - 1) + 1) * pages.element_size()
        spans.append((pages.data_ptr(), pages.data_ptr() + reach, index))
    spans.sort()
    for (_, end, low), (start, _, high) in itertools.pairwise(spans):
        if start < end:
            raise ValueError(
                f"tables {low} and {high} share memory and cannot be contained together: "
                f"give one of them, with the smaller bound"
            )
