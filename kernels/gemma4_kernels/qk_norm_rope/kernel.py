"""A tile of one token's heads per program, all of Q, of K or of V; each head in registers from its load to its store.

The KV pool's store is not part of it: another launch is, with the attention behind it, see decode_attention.
"""

# The annotations are Triton's, which reads them as the types of the compiled kernel's parameters.
# pyright: reportInvalidTypeForm=false

import triton
import triton.language as tl

from gemma4_kernels.early_launch import inputs_are_there
from gemma4_kernels.number_formats import narrowed, rounded, widened
from gemma4_kernels.row_math import load_weight


@triton.jit
def qk_norm_rope_kernel(
    q,  # [tokens, Q_HEADS * 2 * HALF]
    k,  # [tokens, KV_HEADS * 2 * HALF]; with v, their outputs and k_weight any pointer if KV_HEADS is 0
    v,  # as k
    q_weight,  # [2 * HALF]
    k_weight,  # [2 * HALF]
    positions,  # [tokens] int32 or int64: a step's input, so not read ahead of the wait
    cos_sin_cache,  # [P, 2 * HALF]: HALF cosines, then HALF sines
    q_out,  # as q; this and the next two may be q, k and v
    k_out,
    v_out,
    q_stride: tl.int64,
    k_stride: tl.int64,
    v_stride: tl.int64,
    q_out_stride: tl.int64,
    k_out_stride: tl.int64,
    v_out_stride: tl.int64,
    eps,
    Q_HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HALF: tl.constexpr,
    TILE: tl.constexpr,
    EAGER: tl.constexpr,
    EARLY_LAUNCH: tl.constexpr,
):
    DTYPE: tl.constexpr = q.dtype.element_ty
    Q_TILES: tl.constexpr = (Q_HEADS + TILE - 1) // TILE
    KV_TILES: tl.constexpr = (KV_HEADS + TILE - 1) // TILE
    TILES: tl.constexpr = Q_TILES + 2 * KV_TILES
    token = (tl.program_id(0) // TILES).to(tl.int64)
    place = tl.program_id(0) % TILES
    is_q, rotates = place < Q_TILES, place < Q_TILES + KV_TILES
    column = tl.arange(0, HALF)[None, :]
    w = load_weight(tl.where(is_q, q_weight, k_weight), column, rotates)
    other_w = load_weight(tl.where(is_q, q_weight, k_weight) + HALF, column, rotates)
    inputs_are_there(EARLY_LAUNCH)

    position = tl.load(positions + token, mask=rotates, other=0).to(tl.int64)
    tile = tl.where(is_q, place, (place - Q_TILES) % max(KV_TILES, 1))
    head = (tile * TILE + tl.arange(0, TILE))[:, None]
    there = head < tl.where(is_q, Q_HEADS, KV_HEADS)
    at = head * (2 * HALF) + column
    rows = tl.where(is_q, q, tl.where(rotates, k, v))
    rows += token * tl.where(is_q, q_stride, tl.where(rotates, k_stride, v_stride))
    x = widened(tl.load(rows + at, mask=there, other=0.0))
    other_x = widened(tl.load(rows + at + HALF, mask=there, other=0.0))
    angles = cos_sin_cache + position * (2 * HALF)
    cos = widened(tl.load(angles + column, mask=rotates, other=1.0))
    sin = widened(tl.load(angles + column + HALF, mask=rotates, other=0.0))

    mean_square = tl.sum(x * x + other_x * other_x, axis=1)[:, None] * (1.0 / (2 * HALF))
    inverse = tl.rsqrt(mean_square + eps)
    x = rounded(x * inverse * tl.where(rotates, w, 1.0), DTYPE, EAGER)
    other_x = rounded(other_x * inverse * tl.where(rotates, other_w, 1.0), DTYPE, EAGER)
    # Selected, not turned by an angle of 0: that would carry an inf of V to its partner as a NaN.
    first = tl.where(rotates, x * cos - other_x * sin, x)
    second = tl.where(rotates, other_x * cos + x * sin, other_x)
    out = tl.where(is_q, q_out, tl.where(rotates, k_out, v_out))
    out += token * tl.where(is_q, q_out_stride, tl.where(rotates, k_out_stride, v_out_stride))
    tl.store(out + at, narrowed(first, DTYPE), mask=there)
    tl.store(out + at + HALF, narrowed(second, DTYPE), mask=there)
