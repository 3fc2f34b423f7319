"""One row per program, in registers from its one load to its one store."""

# The annotations are Triton's, which reads them as the types of the compiled kernel's parameters.
# pyright: reportInvalidTypeForm=false

import triton
import triton.language as tl

from gemma4_kernels.early_launch import inputs_are_there
from gemma4_kernels.number_formats import rounded
from gemma4_kernels.row_math import load_row, load_weight, rms_normed, store_row


@triton.jit
def rmsnorm_add_kernel(
    x,  # [rows, WIDTH]
    weight,  # [WIDTH]
    residual,  # [rows, WIDTH]
    out,  # [rows, WIDTH]; may be x or residual
    x_stride: tl.int64,
    residual_stride: tl.int64,
    out_stride: tl.int64,
    eps,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    EAGER: tl.constexpr,
    EARLY_LAUNCH: tl.constexpr,
):
    DTYPE: tl.constexpr = x.dtype.element_ty
    column = tl.arange(0, BLOCK)
    inside = column < WIDTH
    row = tl.program_id(0)
    w = load_weight(weight, column, inside)
    inputs_are_there(EARLY_LAUNCH)
    x_row = load_row(x, row, x_stride, column, inside)
    residual_row = load_row(residual, row, residual_stride, column, inside)
    normed = rounded(rms_normed(x_row, w, eps, WIDTH), DTYPE, EAGER)
    store_row(out, row, out_stride, column, normed + residual_row, inside)
