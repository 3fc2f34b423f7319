"""One row per program, in registers from its one load to its two stores."""

# The annotations are Triton's, which reads them as the types of the compiled kernel's parameters.
# pyright: reportInvalidTypeForm=false

import triton
import triton.language as tl

from gemma4_kernels.early_launch import inputs_are_there
from gemma4_kernels.number_formats import rounded
from gemma4_kernels.row_math import inverse_rms, load_row, load_weight, rms_normed, store_row


@triton.jit
def post_attention_norms_kernel(
    attention,  # [rows, WIDTH]
    weight,  # [WIDTH]
    residual,  # [rows, WIDTH]
    next_weight,  # [WIDTH]
    residual_out,  # [rows, WIDTH]; may be attention or residual
    normed_out,  # [rows, WIDTH]; may be the other of them
    attention_stride: tl.int64,
    residual_stride: tl.int64,
    residual_out_stride: tl.int64,
    normed_out_stride: tl.int64,
    eps,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    EARLY: tl.constexpr,  # see row_plan.py
    EAGER: tl.constexpr,
    EARLY_LAUNCH: tl.constexpr,
):
    DTYPE: tl.constexpr = attention.dtype.element_ty
    column = tl.arange(0, BLOCK)
    inside = column < WIDTH
    row = tl.program_id(0)
    w = load_weight(weight, column, inside)
    if EARLY:
        next_w = load_weight(next_weight, column, inside)
    inputs_are_there(EARLY_LAUNCH)
    attention_row = load_row(attention, row, attention_stride, column, inside)
    residual_row = load_row(residual, row, residual_stride, column, inside)
    normed = rounded(rms_normed(attention_row, w, eps, WIDTH), DTYPE, EAGER)
    total = rounded(normed + residual_row, DTYPE, EAGER)
    store_row(residual_out, row, residual_out_stride, column, total, inside)
    inverse = inverse_rms(total, eps, WIDTH)
    if not EARLY:
        next_w = load_weight(next_weight, column, inside)
    store_row(normed_out, row, normed_out_stride, column, total * inverse * next_w, inside)
