"""A program for each block of a token's row, of the embedding first and then of the per-layer one."""

# The annotations are Triton's, which reads them as the types of the compiled kernel's parameters.
# pyright: reportInvalidTypeForm=false

import triton
import triton.language as tl

from gemma4_kernels.early_launch import inputs_are_there
from gemma4_kernels.number_formats import narrowed, widened


@triton.jit
def scaled_row(table, row, stride, column, there, factor):
    """Return fp32; a row may lie more than 2^31 elements from the first, so row and stride are int64."""
    return widened(tl.load(table + row * stride + column, mask=there, other=0.0)) * factor


@triton.jit(do_not_specialize=("tokens", "per_layer_tokens", "picture", "video", "sound", "pad"))
def token_embeddings_kernel(
    token_ids,  # [T] int32 or int64
    table,  # [tokens, WIDTH]
    per_layer_table,  # [per_layer_tokens, PER_LAYER]; any pointer where PER_LAYER is 0
    out,  # [T, WIDTH], contiguous
    per_layer_out,  # [T, PER_LAYER], contiguous; any pointer where PER_LAYER is 0
    table_stride: tl.int64,
    per_layer_stride: tl.int64,
    tokens,
    per_layer_tokens,
    picture,  # ids in whose place the per-layer embedding shows pad
    video,
    sound,
    pad,
    factor,
    per_layer_factor,
    WIDTH: tl.constexpr,
    PER_LAYER: tl.constexpr,
    BLOCK: tl.constexpr,
    EARLY_LAUNCH: tl.constexpr,
):
    DTYPE: tl.constexpr = table.dtype.element_ty
    OF_TOKEN: tl.constexpr = (WIDTH + BLOCK - 1) // BLOCK
    BLOCKS: tl.constexpr = OF_TOKEN + (PER_LAYER + BLOCK - 1) // BLOCK
    row = (tl.program_id(0) // BLOCKS).to(tl.int64)
    block = tl.program_id(0) % BLOCKS
    inputs_are_there(EARLY_LAUNCH)
    token = tl.load(token_ids + row).to(tl.int64)
    if block < OF_TOKEN:
        column = block * BLOCK + tl.arange(0, BLOCK)
        inside = (token >= 0) & (token < tokens)
        value = scaled_row(table, token, table_stride, column, inside & (column < WIDTH), factor)
        value = tl.where(inside, value, float("nan"))
        tl.store(out + row * WIDTH + column, narrowed(value, DTYPE), mask=column < WIDTH)
    else:
        column = (block - OF_TOKEN) * BLOCK + tl.arange(0, BLOCK)
        there = column < PER_LAYER
        shown = tl.where((token == picture) | (token == video) | (token == sound), pad, token)
        shown = tl.where((shown >= 0) & (shown < per_layer_tokens), shown, 0)
        value = scaled_row(per_layer_table, shown, per_layer_stride, column, there, per_layer_factor)
        tl.store(per_layer_out + row * PER_LAYER + column, narrowed(value, DTYPE), mask=there)
