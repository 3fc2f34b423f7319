"""A tile of rows per program."""

# The annotations are Triton's, which reads them as the types of the compiled kernel's parameters.
# pyright: reportInvalidTypeForm=false

import triton
import triton.language as tl
from triton.language.extra import libdevice

from gemma4_kernels.early_launch import inputs_are_there
from gemma4_kernels.number_formats import INTERPRETED, narrowed, rounded, widened

_SQRT_2_OVER_PI: tl.constexpr = tl.constexpr(0.7978845608028654)
_CUBIC: tl.constexpr = tl.constexpr(0.044715)


@triton.jit
def tanh_as_eager(value):
    """CUDA's tanhf, which torch calls. The interpreter has none: there it is off by a unit of 1 at most."""
    if INTERPRETED:
        return 1.0 - 2.0 / (tl.exp(2.0 * value) + 1.0)
    return libdevice.tanh(value)


@triton.jit
def gelu_tanh(x, EAGER: tl.constexpr):
    """fp32."""
    inner = _SQRT_2_OVER_PI * (x + _CUBIC * (x * x * x))
    if EAGER:
        return 0.5 * x * (1.0 + tanh_as_eager(inner))
    # 1 + tanh(u) = 2 sigmoid(2 u), without the cancellation.
    return x / (1.0 + tl.exp(-2.0 * inner))


@triton.jit(do_not_specialize=("rows",))
def gelu_tanh_mul_kernel(
    gate,  # [rows, WIDTH]
    ple,  # [rows, WIDTH]
    out,  # [rows, WIDTH]; may be gate or ple
    gate_stride: tl.int64,
    ple_stride: tl.int64,
    out_stride: tl.int64,
    rows,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    TILE: tl.constexpr,
    EAGER: tl.constexpr,
    EARLY_LAUNCH: tl.constexpr,
):
    DTYPE: tl.constexpr = gate.dtype.element_ty
    row = (tl.program_id(0) * TILE + tl.arange(0, TILE))[:, None].to(tl.int64)
    column = tl.arange(0, BLOCK)[None, :]
    there = (row < rows) & (column < WIDTH)
    inputs_are_there(EARLY_LAUNCH)
    x = widened(tl.load(gate + row * gate_stride + column, mask=there, other=0.0))
    factor = widened(tl.load(ple + row * ple_stride + column, mask=there, other=0.0))
    gated = rounded(gelu_tanh(x, EAGER), DTYPE, EAGER) * factor
    tl.store(out + row * out_stride + column, narrowed(gated, DTYPE), mask=there)
