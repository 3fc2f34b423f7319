"""The launch: grid (blocks of columns, rows, tables), each program BLOCK columns of one row of one table.

A program without an offence writes nothing, so a healthy build has no atomics. The first offence is one 64-bit atomic
maximum per program that found any, over `FIRST_BASE - (position << 32 | value)`. Position orders the keys, the value
rides along, so the pair can never be torn, not even while `contain` overwrites the entry; a maximum over inverted keys
makes zero the empty state, so that a memset resets the buffer. Rejected: a first per row reduced by the last program to
finish. It needs a ticket in device memory, and a ticket that a wild write has hit would silence the guard for good,
in just the servers that it is for; a memset before each launch heals whatever was there.
"""

import triton
import triton.language as tl

from gemma4_kernels.page_guard import spec

_TABLES: tl.constexpr = tl.constexpr(spec.TABLES)
_ROWS: tl.constexpr = tl.constexpr(spec.ROWS)
_TABLE: tl.constexpr = tl.constexpr(spec.TABLE)
_TABLE_WORDS: tl.constexpr = tl.constexpr(spec.TABLE_WORDS)
_COUNT: tl.constexpr = tl.constexpr(spec.COUNT)
_FIRST: tl.constexpr = tl.constexpr(spec.FIRST)
_COLUMNS: tl.constexpr = tl.constexpr(spec.COLUMNS)
_BOUND: tl.constexpr = tl.constexpr(spec.BOUND)
_FLAGS: tl.constexpr = tl.constexpr(spec.FLAGS)
_FIRST_BASE: tl.constexpr = tl.constexpr(spec.FIRST_BASE)
_LEGAL: tl.constexpr = tl.constexpr(int(spec.NullPage.LEGAL))
_LEGAL_IN_PADDED_ROWS: tl.constexpr = tl.constexpr(int(spec.NullPage.LEGAL_IN_PADDED_ROWS))

# Nothing is specialised on a value. Widths and bounds change from build to build, and each new divisibility by 16 would
# stop a serving step for a compilation. Nothing is lost: the mask of live columns rules out vector loads anyway.
_PER_TABLE = ("pages", "row_stride", "column_stride", "columns", "bound", "null_page")
_AS_TYPED = (
    *(f"{name}_{table}" for table in range(spec.MAX_TABLES) for name in _PER_TABLE),
    *("result", "cache_seqlens", "cache_seqlens_stride", "seq_lens", "seq_lens_stride", "fill"),
)


@triton.jit(do_not_specialize=_AS_TYPED)
def page_guard_kernel(
    result,  # int64, zeroed; words as in spec.py
    cache_seqlens,  # [rows] int32 or int64
    cache_seqlens_stride,
    seq_lens,  # [rows] int32 or int64: padded rows have seq_lens == fill
    seq_lens_stride,
    fill,
    # Flat, not tuples: Triton 3.6 specialises the integers inside a tuple whatever do_not_specialize says.
    pages_0,
    row_stride_0,
    column_stride_0,
    columns_0,
    bound_0,
    null_page_0,
    pages_1,
    row_stride_1,
    column_stride_1,
    columns_1,
    bound_1,
    null_page_1,
    pages_2,
    row_stride_2,
    column_stride_2,
    columns_2,
    bound_2,
    null_page_2,
    pages_3,
    row_stride_3,
    column_stride_3,
    columns_3,
    bound_3,
    null_page_3,
    PAGE_SIZE: tl.constexpr,
    CONTAIN: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(1).to(tl.int64)
    seqlen = tl.load(cache_seqlens + row * cache_seqlens_stride).to(tl.int64)
    # Not (seqlen + PAGE_SIZE - 1) // PAGE_SIZE, which overflows, and truncates where seqlen is negative.
    live = tl.where(seqlen > 0, (seqlen - 1) // PAGE_SIZE + 1, 0)
    padded = tl.load(seq_lens + row * seq_lens_stride) == fill
    table = tl.program_id(2)
    # fmt: off
    if table == 0:
        _check_block(result, 0, row, live, padded, pages_0, row_stride_0, column_stride_0, columns_0, bound_0,
                     null_page_0, CONTAIN, BLOCK)
    elif table == 1:
        _check_block(result, 1, row, live, padded, pages_1, row_stride_1, column_stride_1, columns_1, bound_1,
                     null_page_1, CONTAIN, BLOCK)
    elif table == 2:
        _check_block(result, 2, row, live, padded, pages_2, row_stride_2, column_stride_2, columns_2, bound_2,
                     null_page_2, CONTAIN, BLOCK)
    else:
        _check_block(result, 3, row, live, padded, pages_3, row_stride_3, column_stride_3, columns_3, bound_3,
                     null_page_3, CONTAIN, BLOCK)
    # fmt: on


@triton.jit
def _check_block(
    result,
    TABLE: tl.constexpr,
    row,
    live,
    padded,
    pages,
    row_stride,
    column_stride,
    columns,
    bound,
    null_page,
    CONTAIN: tl.constexpr,
    BLOCK: tl.constexpr,
):
    words = result + _TABLE + TABLE * _TABLE_WORDS
    if (tl.program_id(0) == 0) & (tl.program_id(1) == 0):
        tl.store(words + _COLUMNS, columns.to(tl.int64))
        tl.store(words + _BOUND, bound.to(tl.int64))
        if TABLE == 0:
            tl.store(result + _TABLES, tl.num_programs(2).to(tl.int64))
            tl.store(result + _ROWS, tl.num_programs(1).to(tl.int64))
    # Each factor of an offset is int64: rows of a long-context table lie more than 2^31 entries apart.
    start = tl.program_id(0).to(tl.int64) * BLOCK
    live = tl.minimum(live, columns.to(tl.int64))
    if start < live:
        column = start + tl.arange(0, BLOCK)
        mask = column < live
        entries = pages + row * row_stride + column * column_stride
        page = tl.load(entries, mask=mask, other=0)
        null_legal = (null_page == _LEGAL) | ((null_page == _LEGAL_IN_PADDED_ROWS) & padded)
        lower = tl.where(null_legal, 0, 1)
        bad = mask & ((page < lower) | (page >= bound))
        count = tl.sum(bad.to(tl.int32), axis=0)
        if count > 0:
            key = ((row * columns + column) << 32) | (page.to(tl.int64) & 0xFFFFFFFF)
            first = tl.max(tl.where(bad, _FIRST_BASE - key, 0), axis=0)
            # Relaxed: nobody reads the words before the launch has ended.
            tl.atomic_add(words + _COUNT, count.to(tl.int64), sem="relaxed")
            tl.atomic_max(words + _FIRST, first, sem="relaxed")
            tl.atomic_or(result + _FLAGS + row, tl.full((), 1 << TABLE, tl.int64), sem="relaxed")
            if CONTAIN:
                tl.store(entries, tl.zeros_like(page), mask=bad)
