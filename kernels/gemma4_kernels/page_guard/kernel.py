"""The launch: grid (rows, splits of a row, arrays), each program every n-th block of one row of one array.

There is no atomic and no ticket. A program keeps its first offence in registers and stores it into words that no other
program writes, so column and value can never be torn, not even while `contain` overwrites the entry; the host takes the
lowest column of a row's programs. Word FOUND and the shape words are stored by whoever found something, always with the
same values. A program that found nothing writes nothing, so zero is the empty state, and nothing is ever read back: the
words can lie in pinned host memory, where a launch needs neither a memset before it nor a copy after it.
Rejected: a first per row reduced by the last program to finish. It needs a ticket in device memory, and a ticket that a
wild write has hit would silence the guard for good, in just the servers that it is for. Rejected too: arguments in
device memory, for the same reason.
"""

# The annotations are Triton's, which reads them as the types of the compiled kernel's parameters.
# pyright: reportInvalidTypeForm=false

import triton
import triton.language as tl

from gemma4_kernels.page_guard import spec

_FOUND: tl.constexpr = tl.constexpr(spec.FOUND)
_ARRAYS: tl.constexpr = tl.constexpr(spec.ARRAYS)
_ROWS: tl.constexpr = tl.constexpr(spec.ROWS)
_SPLITS: tl.constexpr = tl.constexpr(spec.SPLITS)
_ARRAY: tl.constexpr = tl.constexpr(spec.ARRAY)
_ARRAY_WORDS: tl.constexpr = tl.constexpr(spec.ARRAY_WORDS)
_COLUMNS: tl.constexpr = tl.constexpr(spec.COLUMNS)
_BOUND: tl.constexpr = tl.constexpr(spec.BOUND)
_LANES: tl.constexpr = tl.constexpr(spec.LANES)
_LANE_WORDS: tl.constexpr = tl.constexpr(spec.LANE_WORDS)
_COUNT: tl.constexpr = tl.constexpr(spec.COUNT)
_COLUMN: tl.constexpr = tl.constexpr(spec.COLUMN)
_VALUE: tl.constexpr = tl.constexpr(spec.VALUE)
_LOWER: tl.constexpr = tl.constexpr(spec.LOWER)
_NEEDED: tl.constexpr = tl.constexpr(spec.NEEDED)
_NO_SIZE_WOULD_DO: tl.constexpr = tl.constexpr(spec.NO_SIZE_WOULD_DO)
_LEGAL: tl.constexpr = tl.constexpr(int(spec.NullPage.LEGAL))
_LEGAL_IN_PADDED_ROWS: tl.constexpr = tl.constexpr(int(spec.NullPage.LEGAL_IN_PADDED_ROWS))
_ABSENT: tl.constexpr = tl.constexpr(int(spec.Kind.ABSENT))
_TABLE: tl.constexpr = tl.constexpr(int(spec.Kind.TABLE))
_RAGGED_SLOTS: tl.constexpr = tl.constexpr(int(spec.Kind.RAGGED_SLOTS))
_NO_COLUMN: tl.constexpr = tl.constexpr(2**63 - 1)

# Nothing is specialised on a value. Widths and bounds change from build to build, and each new divisibility by 16 would
# stop a serving step for a compilation. Nothing is lost: the mask of live columns rules out vector loads anyway. The
# integers are int64 by annotation, or a value beyond 2^31 would be a new type, and a compilation too.
PER_ARRAY = (
    "entries",
    "indptr",
    "indptr_stride",
    "row_stride",
    "column_stride",
    "columns",
    "bound",
    "null_page",
    "window_keys",
)
_AS_TYPED = (
    *(f"{name}_{array}" for array in range(spec.MAX_ARRAYS) for name in PER_ARRAY),
    *("result", "cache_seqlens", "cache_seqlens_stride", "seq_lens", "seq_lens_stride", "fill", "page_size"),
)


@triton.jit(do_not_specialize=_AS_TYPED)
def page_guard_kernel(
    result,  # int64, zeroed; words as in spec.py
    cache_seqlens,  # [rows] int32 or int64; any pointer if there is no table
    cache_seqlens_stride: tl.int64,
    seq_lens,  # [rows] int32 or int64: padded rows have seq_lens == fill; any pointer if no array asks for it
    seq_lens_stride: tl.int64,
    fill: tl.int64,
    page_size: tl.int64,
    # Flat, not tuples: Triton 3.6 specialises the integers inside a tuple whatever do_not_specialize says.
    entries_0,
    indptr_0,
    indptr_stride_0: tl.int64,
    row_stride_0: tl.int64,
    column_stride_0: tl.int64,
    columns_0: tl.int64,
    bound_0: tl.int64,
    null_page_0: tl.int64,
    window_keys_0: tl.int64,
    entries_1,
    indptr_1,
    indptr_stride_1: tl.int64,
    row_stride_1: tl.int64,
    column_stride_1: tl.int64,
    columns_1: tl.int64,
    bound_1: tl.int64,
    null_page_1: tl.int64,
    window_keys_1: tl.int64,
    entries_2,
    indptr_2,
    indptr_stride_2: tl.int64,
    row_stride_2: tl.int64,
    column_stride_2: tl.int64,
    columns_2: tl.int64,
    bound_2: tl.int64,
    null_page_2: tl.int64,
    window_keys_2: tl.int64,
    entries_3,
    indptr_3,
    indptr_stride_3: tl.int64,
    row_stride_3: tl.int64,
    column_stride_3: tl.int64,
    columns_3: tl.int64,
    bound_3: tl.int64,
    null_page_3: tl.int64,
    window_keys_3: tl.int64,
    KIND_0: tl.constexpr,
    KIND_1: tl.constexpr,
    KIND_2: tl.constexpr,
    KIND_3: tl.constexpr,
    CONTAIN: tl.constexpr,
    BLOCK: tl.constexpr,
):
    array = tl.program_id(2)
    # fmt: off
    if array == 0:
        _check_row(result, 0, KIND_0, cache_seqlens, cache_seqlens_stride, seq_lens, seq_lens_stride, fill, page_size,
                   entries_0, indptr_0, indptr_stride_0, row_stride_0, column_stride_0, columns_0, bound_0,
                   null_page_0, window_keys_0, CONTAIN, BLOCK)
    if KIND_1 != _ABSENT and array == 1:
        _check_row(result, 1, KIND_1, cache_seqlens, cache_seqlens_stride, seq_lens, seq_lens_stride, fill,
                   page_size, entries_1, indptr_1, indptr_stride_1, row_stride_1, column_stride_1, columns_1,
                   bound_1, null_page_1, window_keys_1, CONTAIN, BLOCK)
    if KIND_2 != _ABSENT and array == 2:
        _check_row(result, 2, KIND_2, cache_seqlens, cache_seqlens_stride, seq_lens, seq_lens_stride, fill,
                   page_size, entries_2, indptr_2, indptr_stride_2, row_stride_2, column_stride_2, columns_2,
                   bound_2, null_page_2, window_keys_2, CONTAIN, BLOCK)
    if KIND_3 != _ABSENT and array == 3:
        _check_row(result, 3, KIND_3, cache_seqlens, cache_seqlens_stride, seq_lens, seq_lens_stride, fill,
                   page_size, entries_3, indptr_3, indptr_stride_3, row_stride_3, column_stride_3, columns_3,
                   bound_3, null_page_3, window_keys_3, CONTAIN, BLOCK)
    # fmt: on


@triton.jit
def _check_row(
    result,
    ARRAY: tl.constexpr,
    KIND: tl.constexpr,
    cache_seqlens,
    cache_seqlens_stride,
    seq_lens,
    seq_lens_stride,
    fill,
    page_size,
    entries,
    indptr,
    indptr_stride,
    row_stride,
    column_stride,
    columns,
    bound,
    null_page,
    window_keys,
    CONTAIN: tl.constexpr,
    BLOCK: tl.constexpr,
):
    # Each factor of an offset is int64: rows of a long-context table lie more than 2^31 entries apart. The interpreter
    # types an integer by its value, whatever the annotation says.
    row, split, splits = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64), tl.num_programs(1).to(tl.int64)
    columns = columns.to(tl.int64)
    bound = bound.to(tl.int64)
    page_size = page_size.to(tl.int64)
    window_keys = window_keys.to(tl.int64)
    entries += row * row_stride.to(tl.int64)
    left_by_window = tl.zeros_like(row)
    null_slots = page_size
    if KIND == _TABLE:
        seqlen = tl.maximum(tl.load(cache_seqlens + row * cache_seqlens_stride.to(tl.int64)).to(tl.int64), 0)
        # Not (seqlen + page_size - 1) // page_size, which overflows, and truncates where seqlen is negative.
        used = tl.where(seqlen > 0, (seqlen - 1) // page_size + 1, 0)
        needed = tl.where(used > columns, used, 0)
        live = tl.minimum(used, columns)
        behind = tl.maximum(seqlen - tl.maximum(window_keys, 0), 0) // page_size
        left_by_window = tl.where(window_keys >= 0, behind, 0)
        null_slots = tl.full((), 1, tl.int64)
    elif KIND == _RAGGED_SLOTS:
        indptr += row * indptr_stride.to(tl.int64)
        start = tl.load(indptr).to(tl.int64)
        end = tl.load(indptr + indptr_stride.to(tl.int64)).to(tl.int64)
        needed = tl.where(end > columns, end, tl.where((start < 0) | (end < start), _NO_SIZE_WOULD_DO, 0))
        first_slot = tl.minimum(tl.maximum(start, 0), columns)
        live = tl.minimum(tl.maximum(end, first_slot), columns) - first_slot
        entries += first_slot * column_stride.to(tl.int64)
    else:
        needed = tl.zeros_like(row)
        live = columns
    # The mask is for the pointer of a build without padding, which is not one of lengths.
    by_padding = null_page == _LEGAL_IN_PADDED_ROWS
    seq_len = tl.load(seq_lens + row * seq_lens_stride.to(tl.int64), mask=by_padding, other=0).to(tl.int64)
    null_legal = (null_page == _LEGAL) | (by_padding & (seq_len == fill.to(tl.int64)))
    real_from = tl.where(null_legal, _NO_COLUMN, left_by_window)

    # Element by element over the blocks, one reduction at the end: no barrier in the loop, so loads overlap.
    counts = tl.zeros((BLOCK,), tl.int32)
    first_columns = tl.full((BLOCK,), _NO_COLUMN, tl.int64)
    first_values = tl.zeros((BLOCK,), tl.int64)
    for begin in range(split * BLOCK, live, splits * BLOCK):
        column = begin + tl.arange(0, BLOCK).to(tl.int64)
        mask = column < live
        places = entries + column * column_stride.to(tl.int64)
        loaded = tl.load(places, mask=mask, other=0)
        value = loaded.to(tl.int64)
        lower = tl.where(column < real_from, 0, null_slots)
        bad = mask & ((value < lower) | (value >= bound))
        new = bad & (first_columns == _NO_COLUMN)
        first_columns = tl.where(new, column, first_columns)
        first_values = tl.where(new, value, first_values)
        counts += bad.to(tl.int32)
        if CONTAIN:
            tl.store(places, tl.zeros_like(loaded), mask=bad)
    count = tl.sum(counts.to(tl.int64), axis=0)

    rows = tl.num_programs(0).to(tl.int64)
    lane = result + _LANES + _LANE_WORDS * ((ARRAY * rows + row) * splits + split)
    overflows = (needed != 0) & (split == 0)
    if count > 0:
        first = tl.min(first_columns, axis=0)
        tl.store(lane + _COUNT, count)
        tl.store(lane + _COLUMN, first)
        tl.store(lane + _VALUE, tl.sum(tl.where(first_columns == first, first_values, 0), axis=0))
        tl.store(lane + _LOWER, tl.where(first < real_from, 0, null_slots))
    if overflows:
        tl.store(lane + _NEEDED, needed)
    if (count > 0) | overflows:
        tl.store(result + _FOUND, tl.full((), 1, tl.int64))
        tl.store(result + _ARRAYS, tl.num_programs(2).to(tl.int64))
        tl.store(result + _ROWS, rows)
        tl.store(result + _SPLITS, splits)
        tl.store(result + _ARRAY + _ARRAY_WORDS * ARRAY + _COLUMNS, columns)
        tl.store(result + _ARRAY + _ARRAY_WORDS * ARRAY + _BOUND, bound)
