"""out = gelu_tanh(gate) * ple, [T, P]. ple is one layer's slice of [T, L, P]: its rows lie L * P apart. No triton here.

EAGER rounds the gelu, then the product, and has eager's tanh, which is exactly -1 below about -9: a gate there gives 0.
FP32 is x * sigmoid(2 u), which is the same function and keeps its relative accuracy in that tail. A gate of -inf gives
NaN, as in eager.
"""

from __future__ import annotations

from gemma4_kernels.rounding import RowCase, Tolerance

CASES = (
    RowCase("no-rows", 0, 256),
    RowCase("one-row", 1, 256),
    RowCase("seven-rows", 7, 256),
    RowCase("decode", 64, 256, interpreted=False),
    RowCase("odd-width", 7, 77),
    RowCase("wide", 3, 2816),
    RowCase("prefill", 4097, 256, interpreted=False),
)
AXES = {"width": (256,), "rows": (1, 8, 64, 512, 4096, 32768)}

TOLERANCES = {
    "bfloat16": Tolerance(2**-8, "one rounding to 8 bits of mantissa, half a unit, doubled for fp32's own errors"),
    "float16": Tolerance(2**-11, "one rounding to 11 bits of mantissa, with the same margin"),
    "float32": Tolerance(2e-6, "an exponential of a rounded argument, which is below 40 where the result is not 0"),
}
