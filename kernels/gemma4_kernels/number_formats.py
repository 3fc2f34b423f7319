"""Conversions between fp32 and the tensors' dtype that are right in Triton's interpreter too.

Compiled, they are `.to`. Triton 3.6's interpreter cuts bf16 off instead of rounding it and gets bf16 denormals wrong
(`_convert_float` in triton/runtime/interpreter.py), so there bf16 is made of integers. This can go with a release whose
interpreter rounds.
"""

# The annotations are Triton's, which reads them as the types of the compiled kernel's parameters.
# pyright: reportInvalidTypeForm=false

import triton
import triton.language as tl
from triton import knobs

INTERPRETED: tl.constexpr = tl.constexpr(knobs.runtime.interpret)


@triton.jit
def widened(value):
    """bf16, fp16 or fp32 as fp32."""
    if INTERPRETED and value.dtype == tl.bfloat16:
        bits = value.to(tl.uint16, bitcast=True).to(tl.uint32) << 16
        return bits.to(tl.float32, bitcast=True)
    return value.to(tl.float32)


@triton.jit
def narrowed(value, DTYPE: tl.constexpr):
    """fp32 as DTYPE, to nearest, ties to even."""
    if INTERPRETED and tl.bfloat16 == DTYPE:
        bits = value.to(tl.uint32, bitcast=True)
        nearest = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
        # A NaN must not be rounded up to an infinity.
        kept = tl.where(value == value, nearest, (bits >> 16) | 0x40)
        return kept.to(tl.uint16).to(tl.bfloat16, bitcast=True)
    return value.to(DTYPE)


@triton.jit
def rounded(value, DTYPE: tl.constexpr, EAGER: tl.constexpr):
    """fp32 `value` as it is after a stay in memory as DTYPE, with EAGER; else as it is."""
    if EAGER:
        return widened(narrowed(value, DTYPE))
    return value
