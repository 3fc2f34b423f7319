"""The first launch: a tile of one expert's gate and up per program, for all rows that chose this expert.

Programs are there for every pair of a row and an expert. Which of them has to do with an expert it finds in the ids:
the first that names it; the others end at once. What the second launch needs to know is written on the way: the
experts in the order of their ids, and for each the pair and the share of every row.
"""

# The annotations are Triton's, which reads them as the types of the compiled kernel's parameters.
# pyright: reportInvalidTypeForm=false

import triton
import triton.language as tl

from gemma4_kernels.early_launch import inputs_are_there
from gemma4_kernels.number_formats import narrowed, rounded
from gemma4_kernels.small_m_linear.kernel import weight_block

_SQRT_HALF: tl.constexpr = tl.constexpr(0.7071067811865476)


@triton.jit
def gelu_exact(x):
    """fp32."""
    return x * (0.5 * (1.0 + tl.erf(x * _SQRT_HALF)))


@triton.jit
def note_expert(
    ids,
    shares,
    order,
    order_shares,
    mine,
    wanting,
    pair_of,
    pairs,
    experts,
    TOP_K: tl.constexpr,
    PLACES: tl.constexpr,
    PAIRS: tl.constexpr,
    BLOCK_M: tl.constexpr,
):
    """Write expert `mine` to its place among the experts that are chosen, and its rows' pairs and shares.

    order is int32: how many experts there are, their ids, and BLOCK_M pairs of each, -1 for a row that did not choose
    it; order_shares is fp32 [PAIRS, BLOCK_M].
    """
    pair = tl.arange(0, PAIRS)
    id = tl.load(ids + pair, mask=pair < pairs, other=-1)
    other = tl.load(ids + pair, mask=pair < pairs, other=-1)
    again = (id[:, None] == other[None, :]) & (pair[None, :] < pair[:, None])
    chosen = (tl.max(again.to(tl.int32), axis=1) == 0) & (id >= 0) & (id < experts)
    place = tl.sum((chosen & (id < mine)).to(tl.int32), axis=0)
    if place == 0:
        tl.store(order, tl.sum(chosen.to(tl.int32), axis=0))
    tl.store(order + 1 + place, mine)
    row = tl.arange(0, BLOCK_M)
    k = tl.arange(0, PLACES)
    at = row[:, None] * TOP_K + k[None, :]
    there = (k < TOP_K)[None, :] & (at < pairs)
    here = tl.load(ids + at, mask=there, other=-1) == mine
    share = tl.sum(tl.where(here, tl.load(shares + at, mask=there, other=0.0), 0.0), axis=1)
    tl.store(order + 1 + PAIRS + place * BLOCK_M + row, tl.where(wanting, pair_of, -1))
    tl.store(order_shares + place * BLOCK_M + row, share)


@triton.jit
def expert_tile(
    program,
    x,
    weight,
    out,
    ids,
    shares,
    order,
    order_shares,
    x_stride,
    expert_stride,
    weight_stride,
    out_stride,
    pairs,
    experts,
    columns,
    depth,
    TOP_K: tl.constexpr,
    PLACES: tl.constexpr,
    PAIRS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    STAGES: tl.constexpr,
    WHOLE_BLOCKS: tl.constexpr,
):
    """Compute and store what is program's of the gated rows [pairs, columns]; the arguments are the kernel's."""
    HELD: tl.constexpr = BLOCK_N // 2
    DTYPE: tl.constexpr = x.dtype.element_ty
    tiles = tl.cdiv(columns, HELD)
    slot = program // tiles
    tile = program % tiles
    place = tl.arange(0, BLOCK_N)
    row = tl.arange(0, BLOCK_M)
    k = tl.arange(0, BLOCK_K)
    column = tile * HELD + tl.arange(0, HELD)
    # Beyond the last column the last one is read once more, and not stored.
    weight_row = tl.minimum(tile * HELD + place // 2, columns - 1) + place % 2 * columns
    mine = tl.load(ids + slot)
    working = (mine >= 0) & (mine < experts)
    if BLOCK_M == 1:
        inputs = x + (slot // TOP_K).to(tl.int64) * x_stride
        pair_of = slot + row
        wanting = row == 0
    else:
        pair = tl.arange(0, PAIRS)
        earlier = (tl.load(ids + pair, mask=pair < slot, other=-1) == mine).to(tl.int32)
        working &= tl.max(earlier, axis=0) == 0
        places = tl.arange(0, PLACES)[None, :]
        at = row[:, None] * TOP_K + places
        here = tl.load(ids + at, mask=(places < TOP_K) & (at < pairs), other=-1) == mine
        place_of = tl.max(tl.where(here, places, -1), axis=1)
        wanting = place_of >= 0
        pair_of = row * TOP_K + place_of
        inputs = x + row.to(tl.int64) * x_stride
    if working:
        if BLOCK_M > 1:  # noqa: SIM102 - a constant, for which Triton leaves the branch out
            if tile == 0:
                note_expert(
                    ids, shares, order, order_shares, mine, wanting, pair_of, pairs, experts,
                    TOP_K, PLACES, PAIRS, BLOCK_M,
                )  # fmt: skip
        weights = weight + mine.to(tl.int64) * expert_stride + weight_row.to(tl.int64)[:, None] * weight_stride
        total = tl.zeros([BLOCK_N, BLOCK_K if BLOCK_M == 1 else BLOCK_M], tl.float32)
        for block in tl.range(0, tl.cdiv(depth, BLOCK_K), num_stages=STAGES):  # pyright: ignore[reportGeneralTypeIssues]
            at_k = block * BLOCK_K + k
            w = weight_block(weights, at_k, depth, WHOLE_BLOCKS)
            if BLOCK_M == 1:
                v = tl.load(inputs + at_k) if WHOLE_BLOCKS else tl.load(inputs + at_k, mask=at_k < depth, other=0.0)
                total += w.to(tl.float32) * v.to(tl.float32)[None, :]
            else:
                there = wanting[None, :]
                if not WHOLE_BLOCKS:
                    there &= at_k[:, None] < depth
                v = tl.load(inputs[None, :] + at_k[:, None], mask=there, other=0.0)
                total = tl.dot(w, v, total, input_precision="ieee")
        if BLOCK_M == 1:
            total = tl.sum(total, axis=1)[:, None]
        halves = tl.permute(tl.reshape(total, [HELD, 2, BLOCK_M]), (0, 2, 1))
        gate, up = tl.split(halves)
        made = gelu_exact(rounded(gate, DTYPE, True)) * rounded(up, DTYPE, True)
        outputs = out + pair_of[None, :].to(tl.int64) * out_stride + column[:, None]
        tl.store(outputs, narrowed(made, DTYPE), mask=(column < columns)[:, None] & wanting[None, :])


@triton.jit(do_not_specialize=("pairs", "experts", "columns", "depth"))
def routed_experts_kernel(
    x,  # [rows, depth]
    weight,  # [experts, 2 * columns, depth]
    out,  # [pairs, columns]
    ids,  # int32 [rows, TOP_K], contiguous
    shares,  # fp32 [rows, TOP_K], contiguous
    order,  # int32 [1 + PAIRS + PAIRS * BLOCK_M]; unused with BLOCK_M 1
    order_shares,  # fp32 [PAIRS, BLOCK_M]; unused with BLOCK_M 1
    x_stride: tl.int64,
    expert_stride: tl.int64,
    weight_stride: tl.int64,
    out_stride: tl.int64,
    pairs,
    experts,
    columns,
    depth,
    TOP_K: tl.constexpr,
    PLACES: tl.constexpr,
    PAIRS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    STAGES: tl.constexpr,
    WHOLE_BLOCKS: tl.constexpr,
    EARLY_LAUNCH: tl.constexpr,
):
    inputs_are_there(EARLY_LAUNCH)
    expert_tile(
        tl.program_id(0), x, weight, out, ids, shares, order, order_shares,
        x_stride, expert_stride, weight_stride, out_stride, pairs, experts, columns, depth,
        TOP_K, PLACES, PAIRS, BLOCK_M, BLOCK_N, BLOCK_K, STAGES, WHOLE_BLOCKS,
    )  # fmt: skip
