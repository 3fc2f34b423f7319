"""One row per program, in registers from its one load to its last store."""

# The annotations are Triton's, which reads them as the types of the compiled kernel's parameters.
# pyright: reportInvalidTypeForm=false

import triton
import triton.language as tl

from gemma4_kernels.early_launch import inputs_are_there
from gemma4_kernels.number_formats import rounded, widened
from gemma4_kernels.row_math import inverse_rms, inverse_rms_of_two, load_row, load_weight, store_row


@triton.jit
def cross_layer_norm_kernel(
    first,  # [T, WIDTH]: the branch, or the first of two
    first_weight,  # [WIDTH]; with second and second_weight any pointer unless TWO_BRANCHES
    second,  # [T, WIDTH]
    second_weight,  # [WIDTH]
    weight,  # [WIDTH]
    residual,  # [T, WIDTH]
    scalar,  # one element
    next_weight,  # [WIDTH]; with normed_out any pointer unless HAS_NEXT
    row_ids,  # [rows] int64: where row i of the outputs comes from; any pointer unless GATHERS
    hidden_out,  # [rows, WIDTH]; any pointer unless HAS_HIDDEN
    normed_out,  # [rows, WIDTH]
    first_stride: tl.int64,
    second_stride: tl.int64,
    residual_stride: tl.int64,
    hidden_out_stride: tl.int64,
    normed_out_stride: tl.int64,
    eps,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    TWO_BRANCHES: tl.constexpr,
    GATHERS: tl.constexpr,
    HAS_HIDDEN: tl.constexpr,
    HAS_NEXT: tl.constexpr,
    EARLY: tl.constexpr,  # see row_plan.py
    EAGER: tl.constexpr,
    EARLY_LAUNCH: tl.constexpr,
):
    DTYPE: tl.constexpr = residual.dtype.element_ty
    column = tl.arange(0, BLOCK)
    inside = column < WIDTH
    row = tl.program_id(0)
    factor = widened(tl.load(scalar))
    if EARLY:
        w = load_weight(weight, column, inside)
        if TWO_BRANCHES:
            first_w = load_weight(first_weight, column, inside)
            second_w = load_weight(second_weight, column, inside)
        if HAS_NEXT:
            next_w = load_weight(next_weight, column, inside)
    inputs_are_there(EARLY_LAUNCH)
    source = row
    if GATHERS:
        source = tl.load(row_ids + row)
    branch = load_row(first, source, first_stride, column, inside)
    if TWO_BRANCHES:
        other = load_row(second, source, second_stride, column, inside)
    residual_row = load_row(residual, source, residual_stride, column, inside)

    if TWO_BRANCHES:
        inverse, other_inverse = inverse_rms_of_two(branch, other, eps, WIDTH)
        if not EARLY:
            first_w = load_weight(first_weight, column, inside)
            second_w = load_weight(second_weight, column, inside)
        branch = rounded(branch * inverse * first_w, DTYPE, EAGER)
        branch = rounded(branch + rounded(other * other_inverse * second_w, DTYPE, EAGER), DTYPE, EAGER)
    inverse = inverse_rms(branch, eps, WIDTH)
    if not EARLY:
        w = load_weight(weight, column, inside)
    normed = rounded(branch * inverse * w, DTYPE, EAGER)
    hidden = rounded(rounded(normed + residual_row, DTYPE, EAGER) * factor, DTYPE, EAGER)
    if HAS_HIDDEN:
        store_row(hidden_out, row, hidden_out_stride, column, hidden, inside)
    if HAS_NEXT:
        inverse = inverse_rms(hidden, eps, WIDTH)
        if not EARLY:
            next_w = load_weight(next_weight, column, inside)
        store_row(normed_out, row, normed_out_stride, column, hidden * inverse * next_w, inside)
