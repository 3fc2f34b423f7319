"""The first launch: the gate and up of the dense MLP, and beside them the router's logits.

A program has as many rows of either weight, at the same depth, so that all take equally long. Those of the router come
first: they are few, and what follows waits for them.
"""

# The annotations are Triton's, which reads them as the types of the compiled kernel's parameters.
# pyright: reportInvalidTypeForm=false

import triton
import triton.language as tl

from gemma4_kernels.early_launch import inputs_are_there
from gemma4_kernels.small_m_linear.kernel import add_blocks, store_tile

_LINE_BITS: tl.constexpr = tl.constexpr(1024)
_LINES: tl.constexpr = tl.constexpr(16)


@triton.jit
def ask_for(weights, columns):
    """Have the L2 cache fetch the first columns of the rows at `weights` [BLOCK_N, 1], and wait for none of them."""
    LINE: tl.constexpr = _LINE_BITS // weights.dtype.element_ty.primitive_bitwidth
    line = tl.arange(0, _LINES)
    for group in range(tl.cdiv(columns, _LINES * LINE)):
        at = tl.minimum((group * _LINES + line) * LINE, columns - 1)
        tl.inline_asm_elementwise(
            "prefetch.global.L2 [$1]; mov.b32 $0, 0;",
            "=r,l",
            [weights + at[None, :]],
            dtype=tl.int32,
            is_pure=False,
            pack=1,
        )


@triton.jit(do_not_specialize=("rows", "columns", "experts", "depth"))
def dense_beside_router_kernel(
    x,  # [rows, depth]
    weight,  # [2 * columns, depth]
    out,  # [rows, columns]
    router_x,  # [rows, depth]
    router_weight,  # [experts, depth]
    logits,  # [rows, experts]
    x_stride: tl.int64,
    weight_stride: tl.int64,
    out_stride: tl.int64,
    router_x_stride: tl.int64,
    router_stride: tl.int64,
    logits_stride: tl.int64,
    rows,
    columns,
    experts,
    depth,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    STAGES: tl.constexpr,
    AHEAD: tl.constexpr,
    WHOLE_BLOCKS: tl.constexpr,
    EARLY_LAUNCH: tl.constexpr,
):
    HELD: tl.constexpr = BLOCK_N // 2
    routers = tl.cdiv(experts, BLOCK_N)
    routes = tl.program_id(0) < routers
    tile = tl.program_id(0) - tl.where(routes, 0, routers)
    place = tl.arange(0, BLOCK_N)
    row = tl.arange(0, BLOCK_M)
    # Beyond the last column the last one is read once more, and not stored.
    of_pair = tl.minimum(tile * HELD + place // 2, columns - 1) + place % 2 * columns
    weight_row = tl.where(routes, tl.minimum(tile * BLOCK_N + place, experts - 1), of_pair).to(tl.int64)[:, None]
    weights = tl.where(routes, router_weight, weight) + weight_row * tl.where(routes, router_stride, weight_stride)
    if AHEAD > 0 and EARLY_LAUNCH > 0:
        ask_for(weights, tl.minimum(depth, AHEAD * BLOCK_K))
    inputs_are_there(EARLY_LAUNCH)
    inputs = tl.where(routes, router_x, x)
    if BLOCK_M > 1:
        inputs += row.to(tl.int64) * tl.where(routes, router_x_stride, x_stride)
    total = tl.zeros([BLOCK_N, BLOCK_K if BLOCK_M == 1 else BLOCK_M], tl.float32)
    total = add_blocks(
        total, weights, inputs, 0, tl.cdiv(depth, BLOCK_K), row, rows, depth, BLOCK_M, BLOCK_K, STAGES, WHOLE_BLOCKS
    )
    if routes:
        expert = tile * BLOCK_N + place
        store_tile(
            total, logits, logits, expert, row, rows, experts, logits_stride, logits_stride, "none", BLOCK_N, BLOCK_M
        )
    else:
        column = tile * HELD + tl.arange(0, HELD)
        store_tile(total, out, out, column, row, rows, columns, out_stride, out_stride, "halves", HELD, BLOCK_M)
