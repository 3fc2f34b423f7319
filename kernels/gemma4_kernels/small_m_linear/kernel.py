"""A tile of weight rows per program, or a part of their depth.

Rejected, since a decode step of E4B was no faster by it on an H200: holding more than one block of weights ahead of the
wait, though some products alone were; letting the kernel behind start before the wait, whose programs then take room
from those that run. Warps that share a block's depth were no faster than programs that do, for a layer's Q, K and V.
"""

# The annotations are Triton's, which reads them as the types of the compiled kernel's parameters.
# pyright: reportInvalidTypeForm=false

import triton
import triton.language as tl

from gemma4_kernels.early_launch import inputs_are_there
from gemma4_kernels.gelu_tanh_mul.kernel import gelu_tanh
from gemma4_kernels.number_formats import narrowed, rounded, widened


@triton.jit
def weight_block(weights, at, depth, WHOLE_BLOCKS: tl.constexpr):
    """Load the columns `at` of the rows at `weights` [BLOCK_N, 1]; 0 beyond the depth."""
    if WHOLE_BLOCKS:
        w = tl.load(weights + at[None, :])
    else:
        w = tl.load(weights + at[None, :], mask=(at < depth)[None, :], other=0.0)
    return w


@triton.jit
def add_block(total, w, inputs, at, row, rows, depth, BLOCK_M: tl.constexpr, WHOLE_BLOCKS: tl.constexpr):
    """Add the products of one block of weights [BLOCK_N, BLOCK_K] with the inputs at `at` to `total`.

    total is [BLOCK_N, BLOCK_M], or [BLOCK_N, BLOCK_K] of a single row, which is summed up once, at the end.
    """
    if BLOCK_M == 1:
        v = tl.load(inputs + at) if WHOLE_BLOCKS else tl.load(inputs + at, mask=at < depth, other=0.0)
        total += w.to(tl.float32) * v.to(tl.float32)[None, :]
    else:
        there = row[None, :] < rows
        if not WHOLE_BLOCKS:
            there &= at[:, None] < depth
        v = tl.load(inputs[None, :] + at[:, None], mask=there, other=0.0)
        total = tl.dot(w, v, total, input_precision="ieee")
    return total


@triton.jit
def add_blocks(
    total,
    weights,
    inputs,
    first,
    last,
    row,
    rows,
    depth,
    BLOCK_M: tl.constexpr,
    BLOCK_K: tl.constexpr,
    STAGES: tl.constexpr,
    WHOLE_BLOCKS: tl.constexpr,
):
    """Add the products of blocks first..last - 1 to `total`, which is add_block's; return fp32 [BLOCK_N, BLOCK_M]."""
    k = tl.arange(0, BLOCK_K)
    for block in tl.range(first, last, num_stages=STAGES):  # pyright: ignore[reportGeneralTypeIssues]
        at = block * BLOCK_K + k
        w = weight_block(weights, at, depth, WHOLE_BLOCKS)
        total = add_block(total, w, inputs, at, row, rows, depth, BLOCK_M, WHOLE_BLOCKS)
    if BLOCK_M == 1:
        total = tl.sum(total, axis=1)[:, None]
    return total


@triton.jit
def store_tile(
    total,
    out,
    factor,
    column,
    row,
    rows,
    columns,
    out_stride,
    factor_stride,
    GATE: tl.constexpr,
    HELD: tl.constexpr,
    BLOCK_M: tl.constexpr,
):
    """Store what a program's columns come to: the products, or gelu_tanh(products) times their partners or `factor`.

    total is fp32 [BLOCK_N, BLOCK_M]. With GATE "halves" its rows are a gate and its partner in turns, and HELD half as
    many columns are stored. A product is rounded before it is gated, as if it had been stored and read again.
    """
    DTYPE: tl.constexpr = out.dtype.element_ty
    stored = (column[:, None] < columns) & (row[None, :] < rows)
    outputs = out + row[None, :].to(tl.int64) * out_stride + column[:, None]
    if GATE == "none":
        made = total
    elif GATE == "halves":
        pairs = tl.permute(tl.reshape(total, [HELD, 2, BLOCK_M]), (0, 2, 1))
        gate, partner = tl.split(pairs)
        made = gelu_tanh(rounded(gate, DTYPE, True), False) * rounded(partner, DTYPE, True)
    else:
        factors = tl.load(factor + row[None, :].to(tl.int64) * factor_stride + column[:, None], mask=stored, other=0.0)
        made = gelu_tanh(rounded(total, DTYPE, True), False) * widened(factors)
    tl.store(outputs, narrowed(made, DTYPE), mask=stored)


@triton.jit(do_not_specialize=("rows", "columns", "depth", "splits"))
def small_m_linear_kernel(
    x,  # [rows, depth]
    weight,  # [columns, depth], or [2 * columns, depth] with GATE "halves"
    out,  # [rows, columns]
    factor,  # [rows, columns]; unused without GATE "factor"
    partial,  # fp32 [tiles, splits, BLOCK_N, BLOCK_M]; unused without splits
    counters,  # int32 [tiles], 0 before and after; unused without splits
    x_stride: tl.int64,
    weight_stride: tl.int64,
    out_stride: tl.int64,
    factor_stride: tl.int64,
    rows,
    columns,
    depth,
    splits,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    STAGES: tl.constexpr,
    SPLIT: tl.constexpr,
    AHEAD: tl.constexpr,
    WHOLE_BLOCKS: tl.constexpr,
    GATE: tl.constexpr,
    EARLY_LAUNCH: tl.constexpr,
):
    # Columns of `out` that a program holds.
    HELD: tl.constexpr = BLOCK_N // 2 if GATE == "halves" else BLOCK_N
    tile = tl.program_id(0) // splits
    part = tl.program_id(0) % splits
    column = tile * HELD + tl.arange(0, HELD)
    place = tl.arange(0, BLOCK_N)
    row = tl.arange(0, BLOCK_M)
    k = tl.arange(0, BLOCK_K)
    blocks = tl.cdiv(depth, BLOCK_K)
    share = tl.cdiv(blocks, splits)
    first = part * share
    last = tl.minimum(first + share, blocks)
    # Beyond the last column the last one is read once more, and not stored.
    if GATE == "halves":
        weight_row = tl.minimum(tile * HELD + place // 2, columns - 1) + place % 2 * columns
    else:
        weight_row = tl.minimum(tile * HELD + place, columns - 1)
    weights = weight + weight_row.to(tl.int64)[:, None] * weight_stride
    at = first * BLOCK_K + k
    w = weight_block(weights, at, depth, WHOLE_BLOCKS)
    inputs_are_there(EARLY_LAUNCH)
    inputs = x if BLOCK_M == 1 else x + row.to(tl.int64) * x_stride
    total = tl.zeros([BLOCK_N, BLOCK_K if BLOCK_M == 1 else BLOCK_M], tl.float32)
    if AHEAD:
        total = add_block(total, w, inputs, at, row, rows, depth, BLOCK_M, WHOLE_BLOCKS)
        first += 1
    total = add_blocks(total, weights, inputs, first, last, row, rows, depth, BLOCK_M, BLOCK_K, STAGES, WHOLE_BLOCKS)
    if not SPLIT:
        store_tile(total, out, factor, column, row, rows, columns, out_stride, factor_stride, GATE, HELD, BLOCK_M)
    else:
        SIZE: tl.constexpr = BLOCK_N * BLOCK_M
        cells = place[:, None] * BLOCK_M + row[None, :]
        parts = partial + tile.to(tl.int64) * splits * SIZE
        tl.store(parts + part * SIZE + cells, total)
        # All threads' stores come before the one thread's ticket.
        tl.debug_barrier()
        ticket = tl.atomic_add(counters + tile, 1, sem="acq_rel", scope="gpu")
        if ticket == splits - 1:
            # Whoever is last adds the parts up in their order, so that the sum has the same bits each time.
            whole = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
            for number in range(splits):
                whole += tl.load(parts + number * SIZE + cells, cache_modifier=".cg")
            store_tile(whole, out, factor, column, row, rows, columns, out_stride, factor_stride, GATE, HELD, BLOCK_M)
            tl.store(counters + tile, 0)
