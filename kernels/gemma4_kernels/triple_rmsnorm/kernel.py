"""One row per program, in registers from its one load to its four stores.

Rejected: several rows per program with the four weights kept in registers. That saves reads which L1 serves, and takes
so many registers that an SM has fewer rows under way.
"""

# The annotations are Triton's, which reads them as the types of the compiled kernel's parameters.
# pyright: reportInvalidTypeForm=false

import triton
import triton.language as tl

from gemma4_kernels.early_launch import inputs_are_there
from gemma4_kernels.number_formats import rounded
from gemma4_kernels.row_math import inverse_rms, load_row, load_weight, rms_normed, store_row


@triton.jit
def triple_rmsnorm_kernel(
    attention,  # [rows, WIDTH]
    weight,  # [WIDTH]
    residual,  # [rows, WIDTH]
    router_scale,  # [WIDTH]
    dense_weight,  # [WIDTH]
    experts_weight,  # [WIDTH]
    residual_out,  # [rows, WIDTH]; it and the next three are different, and any may be attention or residual
    router_out,
    dense_out,
    experts_out,
    attention_stride: tl.int64,
    residual_stride: tl.int64,
    residual_out_stride: tl.int64,
    router_out_stride: tl.int64,
    dense_out_stride: tl.int64,
    experts_out_stride: tl.int64,
    eps,
    root,  # WIDTH^-0.5
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
        router_w = load_weight(router_scale, column, inside)
        dense_w = load_weight(dense_weight, column, inside)
        experts_w = load_weight(experts_weight, column, inside)
    inputs_are_there(EARLY_LAUNCH)
    attention_row = load_row(attention, row, attention_stride, column, inside)
    residual_row = load_row(residual, row, residual_stride, column, inside)

    normed = rounded(rms_normed(attention_row, w, eps, WIDTH), DTYPE, EAGER)
    total = rounded(normed + residual_row, DTYPE, EAGER)
    store_row(residual_out, row, residual_out_stride, column, total, inside)
    unit = total * inverse_rms(total, eps, WIDTH)
    if not EARLY:
        router_w = load_weight(router_scale, column, inside)
    router = rounded(rounded(unit, DTYPE, EAGER) * router_w, DTYPE, EAGER) * root
    store_row(router_out, row, router_out_stride, column, router, inside)
    if not EARLY:
        dense_w = load_weight(dense_weight, column, inside)
    store_row(dense_out, row, dense_out_stride, column, unit * dense_w, inside)
    if not EARLY:
        experts_w = load_weight(experts_weight, column, inside)
    store_row(experts_out, row, experts_out_stride, column, unit * experts_w, inside)
