"""What the kernels compute on one row in registers."""

# The annotations are Triton's, which reads them as the types of the compiled kernel's parameters.
# pyright: reportInvalidTypeForm=false

import triton
import triton.language as tl

from gemma4_kernels.number_formats import narrowed, widened


@triton.jit
def inverse_rms(value, eps, WIDTH: tl.constexpr):
    """1 / rms of fp32 [BLOCK], whose places from WIDTH on are 0. Times 1 / WIDTH as torch's mean does it on CUDA."""
    return tl.rsqrt(tl.sum(value * value, axis=0) * (1.0 / WIDTH) + eps)


@triton.jit
def rms_normed(value, weight, eps, WIDTH: tl.constexpr):
    """Return value / rms(value) * weight, the products in eager's order."""
    return value * inverse_rms(value, eps, WIDTH) * weight


@triton.jit
def inverse_rms_of_two(first, second, eps, WIDTH: tl.constexpr):
    """`inverse_rms` of both, for the barriers of one."""
    sums = tl.sum(tl.join(first * first, second * second), axis=0)
    return tl.split(tl.rsqrt(sums * (1.0 / WIDTH) + eps))


@triton.jit
def load_row(start, row, stride, column, mask):
    """Row `row` of a matrix with unit stride inside a row: [BLOCK] fp32, 0 where masked."""
    return widened(tl.load(start + tl.cast(row, tl.int64) * stride + column, mask=mask, other=0.0))


@triton.jit
def store_row(start, row, stride, column, value, mask):
    """Round fp32 `value` to the matrix's dtype and store it as row `row`."""
    tl.store(start + tl.cast(row, tl.int64) * stride + column, narrowed(value, start.dtype.element_ty), mask=mask)


@triton.jit
def load_weight(start, column, mask):
    """[BLOCK] fp32. Every program reads it, so it is kept while rows pass through."""
    return widened(tl.load(start + column, mask=mask, other=0.0, eviction_policy="evict_last"))
