"""out = rms(x) * weight + residual, rows of [T, H]. Imports no triton.

EAGER rounds the normed row, then the sum: `Gemma4RMSNorm`, then `+`, of transformers' modeling_gemma4.py. In both modes
a row whose mean square overflows fp32 (elements above about 1e19) has an infinite rms and becomes its residual, as in
eager. NaN and inf go where the arithmetic takes them, and stay in their row.
"""

from __future__ import annotations

from gemma4_kernels.rounding import ROW_CASES, Tolerance

CASES = ROW_CASES
AXES = {"width": (1536, 2560, 2816, 5376), "rows": (1, 8, 64, 512, 4096, 32768)}
# Bytes of HBM traffic per row, in elements of the width: x and residual in, out.
ROW_PASSES = 3

TOLERANCES = {
    "bfloat16": Tolerance(2**-8, "one rounding to 8 bits of mantissa, half a unit, doubled for fp32's own errors"),
    "float16": Tolerance(2**-11, "one rounding to 11 bits of mantissa, with the same margin"),
    "float32": Tolerance(2e-6, "a sum of up to 5376 squares in another order, rsqrt to 2 units, three products"),
}
# out: the norm, the sum. See Rounding.EAGER.
EAGER_ROUNDINGS = (2,)
