"""The third launch: the experts' gates and ups, and beside them the down product of the dense MLP."""

# The annotations are Triton's, which reads them as the types of the compiled kernel's parameters.
# pyright: reportInvalidTypeForm=false, reportArgumentType=false

import triton
import triton.language as tl

from gemma4_kernels.beside_experts.kernel import ask_for
from gemma4_kernels.early_launch import inputs_are_there
from gemma4_kernels.routed_experts.kernel import expert_tile
from gemma4_kernels.small_m_linear.kernel import add_blocks, store_tile


@triton.jit(do_not_specialize=("pairs", "experts", "columns", "depth", "rows", "dense_depth"))
def experts_beside_dense_kernel(
    x,  # [rows, depth]
    weight,  # [experts, 2 * columns, depth]
    out,  # [pairs, columns]
    ids,  # int32 [rows, TOP_K], contiguous
    shares,  # fp32 [rows, TOP_K], contiguous
    order,  # int32 [1 + PAIRS + PAIRS * BLOCK_M]; unused with BLOCK_M 1
    order_shares,  # fp32 [PAIRS, BLOCK_M]; unused with BLOCK_M 1
    gated,  # [rows, dense_depth]
    dense_weight,  # [depth, dense_depth]
    dense,  # [rows, depth]
    x_stride: tl.int64,
    expert_stride: tl.int64,
    weight_stride: tl.int64,
    out_stride: tl.int64,
    gated_stride: tl.int64,
    dense_weight_stride: tl.int64,
    dense_stride: tl.int64,
    pairs,
    experts,
    columns,
    depth,
    rows,
    dense_depth,
    TOP_K: tl.constexpr,
    PLACES: tl.constexpr,
    PAIRS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    STAGES: tl.constexpr,
    WHOLE_BLOCKS: tl.constexpr,
    DENSE_M: tl.constexpr,
    DENSE_N: tl.constexpr,
    DENSE_K: tl.constexpr,
    DENSE_STAGES: tl.constexpr,
    DENSE_AHEAD: tl.constexpr,
    DENSE_WHOLE_BLOCKS: tl.constexpr,
    DENSE_FIRST: tl.constexpr,
    EARLY_LAUNCH: tl.constexpr,
):
    tiles = tl.cdiv(depth, DENSE_N)
    if DENSE_FIRST:
        tile = tl.program_id(0)
        program = tl.program_id(0) - tiles
        is_dense = tile < tiles
    else:
        tile = tl.program_id(0) - pairs * tl.cdiv(columns, BLOCK_N // 2)
        program = tl.program_id(0)
        is_dense = tile >= 0
    column = tile * DENSE_N + tl.arange(0, DENSE_N)
    # Beyond the last column the last one is read once more, and not stored.
    weight_row = tl.minimum(column, depth - 1).to(tl.int64)[:, None]
    weights = dense_weight + weight_row * dense_weight_stride
    if DENSE_AHEAD > 0 and EARLY_LAUNCH > 0:  # noqa: SIM102 - constants, for which Triton leaves the branch out
        if is_dense:
            ask_for(weights, tl.minimum(dense_depth, DENSE_AHEAD * DENSE_K))
    inputs_are_there(EARLY_LAUNCH)
    if is_dense:
        row = tl.arange(0, DENSE_M)
        inputs = gated if DENSE_M == 1 else gated + row.to(tl.int64) * gated_stride
        total = tl.zeros([DENSE_N, DENSE_K if DENSE_M == 1 else DENSE_M], tl.float32)
        total = add_blocks(
            total, weights, inputs, 0, tl.cdiv(dense_depth, DENSE_K), row, rows, dense_depth,
            DENSE_M, DENSE_K, DENSE_STAGES, DENSE_WHOLE_BLOCKS,
        )  # fmt: skip
        store_tile(total, dense, dense, column, row, rows, depth, dense_stride, dense_stride, "none", DENSE_N, DENSE_M)
    else:
        expert_tile(
            program, x, weight, out, ids, shares, order, order_shares,
            x_stride, expert_stride, weight_stride, out_stride, pairs, experts, columns, depth,
            TOP_K, PLACES, PAIRS, BLOCK_M, BLOCK_N, BLOCK_K, STAGES, WHOLE_BLOCKS,
        )  # fmt: skip
