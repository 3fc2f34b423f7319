"""A tile of (token, layer) pairs per program; a warp or more has a pair's whole row."""

# The annotations are Triton's, which reads them as the types of the compiled kernel's parameters.
# pyright: reportInvalidTypeForm=false

import triton
import triton.language as tl

from gemma4_kernels.early_launch import inputs_are_there
from gemma4_kernels.number_formats import narrowed, rounded, widened

_SQRT_HALF: tl.constexpr = tl.constexpr(2**-0.5)


@triton.jit(do_not_specialize=("pairs",))
def ple_front_end_kernel(
    projection,  # [tokens, LAYERS, WIDTH]
    weight,  # [WIDTH]
    ple,  # [tokens, LAYERS, WIDTH]; any pointer without HAS_PLE
    out,  # [tokens, LAYERS, WIDTH]; may be projection or ple
    projection_token_stride: tl.int64,
    projection_layer_stride: tl.int64,
    ple_token_stride: tl.int64,
    ple_layer_stride: tl.int64,
    out_token_stride: tl.int64,
    out_layer_stride: tl.int64,
    pairs,  # tokens * LAYERS, below 2^31
    factor,
    eps,
    LAYERS: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    TILE: tl.constexpr,
    HAS_PLE: tl.constexpr,
    EAGER: tl.constexpr,
    EARLY_LAUNCH: tl.constexpr,
):
    DTYPE: tl.constexpr = projection.dtype.element_ty
    pair = (tl.program_id(0) * TILE + tl.arange(0, TILE))[:, None]
    token, layer = (pair // LAYERS).to(tl.int64), (pair % LAYERS).to(tl.int64)
    column = tl.arange(0, BLOCK)[None, :]
    there = (pair < pairs) & (column < WIDTH)
    places = projection + token * projection_token_stride + layer * projection_layer_stride + column
    w = widened(tl.load(weight + column, mask=column < WIDTH, other=0.0))
    inputs_are_there(EARLY_LAUNCH)
    scaled = rounded(widened(tl.load(places, mask=there, other=0.0)) * factor, DTYPE, EAGER)
    mean_square = tl.sum(scaled * scaled, axis=1)[:, None] * (1.0 / WIDTH)
    result = scaled * tl.rsqrt(mean_square + eps) * w
    if HAS_PLE:
        places = ple + token * ple_token_stride + layer * ple_layer_stride + column
        embedded = widened(tl.load(places, mask=there, other=0.0))
        result = rounded(rounded(result, DTYPE, EAGER) + embedded, DTYPE, EAGER) * _SQRT_HALF
    places = out + token * out_token_stride + layer * out_layer_stride + column
    tl.store(places, narrowed(result, DTYPE), mask=there)
