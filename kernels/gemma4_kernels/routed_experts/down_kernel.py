"""The second launch: a tile of columns per program, or a part of its depth, through all experts that were chosen.

The steps of all experts are one loop, so that the first weights of an expert are under way while the one ahead of it
is multiplied, and a row's sum stays with its program.
"""

# The annotations are Triton's, which reads them as the types of the compiled kernel's parameters.
# pyright: reportInvalidTypeForm=false, reportGeneralTypeIssues=false, reportArgumentType=false

import triton
import triton.language as tl

from gemma4_kernels.early_launch import inputs_are_there
from gemma4_kernels.number_formats import narrowed
from gemma4_kernels.small_m_linear.kernel import weight_block


@triton.jit
def store_rows(total, out, out_stride, first_row, rows, column, columns, BLOCK_M: tl.constexpr):
    """Round fp32 total [BLOCK_N, BLOCK_M] and store it as columns of rows first_row..."""
    row = first_row + tl.arange(0, BLOCK_M)
    outputs = out + row[None, :].to(tl.int64) * out_stride + column[:, None]
    made = narrowed(total, out.dtype.element_ty)
    tl.store(outputs, made, mask=(column < columns)[:, None] & (row < rows)[None, :])


@triton.jit(do_not_specialize=("rows", "experts", "columns", "depth", "splits"))
def experts_down_kernel(
    gated,  # [pairs, depth]
    weight,  # [experts, columns, depth]
    out,  # [rows, columns]
    ids,  # int32 [rows, TOP_K], contiguous; what is read of it with BLOCK_M 1
    shares,  # fp32 [rows, TOP_K], contiguous; likewise
    order,  # int32 [1 + PAIRS + PAIRS * BLOCK_M], as the first launch wrote it
    order_shares,  # fp32 [PAIRS, BLOCK_M], likewise
    partial,  # fp32 [tiles, splits, BLOCK_N, BLOCK_M]; unused without splits
    counters,  # int32 [tiles], 0 before and after; unused without splits
    gated_stride: tl.int64,
    expert_stride: tl.int64,
    weight_stride: tl.int64,
    out_stride: tl.int64,
    rows,
    experts,
    columns,
    depth,
    splits,
    TOP_K: tl.constexpr,
    PAIRS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    STAGES: tl.constexpr,
    SPLIT: tl.constexpr,
    WHOLE_BLOCKS: tl.constexpr,
    EARLY_LAUNCH: tl.constexpr,
):
    part = tl.program_id(0) % splits
    cell = tl.program_id(0) // splits
    tiles = tl.cdiv(columns, BLOCK_N)
    tile = cell % tiles
    # Of the only row, or of the first of all rows.
    first_row = cell // tiles
    place = tl.arange(0, BLOCK_N)
    row = tl.arange(0, BLOCK_M)
    k = tl.arange(0, BLOCK_K)
    column = tile * BLOCK_N + place
    blocks = tl.cdiv(depth, BLOCK_K)
    share_of = tl.cdiv(blocks, splits)
    first = part * share_of
    mine = tl.minimum(first + share_of, blocks) - first
    # Beyond the last column the last one is read once more, and not stored.
    weights = weight + tl.minimum(column, columns - 1).to(tl.int64)[:, None] * weight_stride
    inputs_are_there(EARLY_LAUNCH)
    total = tl.zeros([BLOCK_N, BLOCK_K if BLOCK_M == 1 else BLOCK_M], tl.float32)
    count = TOP_K if BLOCK_M == 1 else tl.load(order)
    for step in tl.range(0, count * mine, num_stages=STAGES):  # pyright: ignore[reportGeneralTypeIssues]
        number = step // mine
        at_k = (first + step % mine) * BLOCK_K + k
        if BLOCK_M == 1:
            pair = first_row * TOP_K + number
            expert = tl.load(ids + pair)
            known = (expert >= 0) & (expert < experts)
            expert = tl.where(known, expert, 0)
            share = tl.load(shares + pair)
            w = weight_block(weights + expert.to(tl.int64) * expert_stride, at_k, depth, WHOLE_BLOCKS)
            v = tl.load(gated + pair.to(tl.int64) * gated_stride + at_k, mask=(at_k < depth) & known, other=0.0)
            # Of an expert that is none nothing is added, not even what is no number times 0.
            total += tl.where(known, w.to(tl.float32) * (v.to(tl.float32) * share)[None, :], 0.0)
        else:
            expert = tl.load(order + 1 + number)
            pair = tl.load(order + 1 + PAIRS + number * BLOCK_M + row)
            share = tl.load(order_shares + number * BLOCK_M + row)
            w = weight_block(weights + expert.to(tl.int64) * expert_stride, at_k, depth, WHOLE_BLOCKS)
            inputs = gated + pair.to(tl.int64) * gated_stride
            there = (pair >= 0)[None, :]
            if not WHOLE_BLOCKS:
                there &= at_k[:, None] < depth
            v = tl.load(inputs[None, :] + at_k[:, None], mask=there, other=0.0)
            made = share[None, :] * tl.dot(w, v, input_precision="ieee")
            # Likewise of an expert that a row did not choose.
            total += tl.where((pair >= 0)[None, :], made, 0.0)
    if BLOCK_M == 1:
        total = tl.sum(total, axis=1)[:, None]
    if not SPLIT:
        store_rows(total, out, out_stride, first_row, rows, column, columns, BLOCK_M)
    else:
        SIZE: tl.constexpr = BLOCK_N * BLOCK_M
        cells = place[:, None] * BLOCK_M + row[None, :]
        parts = partial + cell.to(tl.int64) * splits * SIZE
        tl.store(parts + part * SIZE + cells, total)
        # All threads' stores come before the one thread's ticket.
        tl.debug_barrier()
        ticket = tl.atomic_add(counters + cell, 1, sem="acq_rel", scope="gpu")
        if ticket == splits - 1:
            # Whoever is last adds the parts up in their order, so that the sum has the same bits each time.
            whole = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
            for number in range(splits):
                whole += tl.load(parts + number * SIZE + cells, cache_modifier=".cg")
            store_rows(whole, out, out_stride, first_row, rows, column, columns, BLOCK_M)
            tl.store(counters + cell, 0)
