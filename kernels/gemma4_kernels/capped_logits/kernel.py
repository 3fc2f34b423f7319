"""A program for each block of a row."""

# The annotations are Triton's, which reads them as the types of the compiled kernel's parameters.
# pyright: reportInvalidTypeForm=false

import triton
import triton.language as tl

from gemma4_kernels.early_launch import inputs_are_there
from gemma4_kernels.gelu_tanh_mul.kernel import tanh_as_eager
from gemma4_kernels.number_formats import widened


@triton.jit
def capped_logits_kernel(
    logits,  # [rows, WIDTH]
    out,  # [rows, WIDTH] fp32
    logits_stride: tl.int64,
    out_stride: tl.int64,
    cap,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    EARLY_LAUNCH: tl.constexpr,
):
    BLOCKS: tl.constexpr = (WIDTH + BLOCK - 1) // BLOCK
    row = (tl.program_id(0) // BLOCKS).to(tl.int64)
    column = (tl.program_id(0) % BLOCKS) * BLOCK + tl.arange(0, BLOCK)
    there = column < WIDTH
    inputs_are_there(EARLY_LAUNCH)
    value = widened(tl.load(logits + row * logits_stride + column, mask=there, other=0.0))
    # The cap must not be known to the compiler: it would multiply by its inverse, which is other bits.
    tl.store(out + row * out_stride + column, tanh_as_eager(value / cap) * cap, mask=there)
