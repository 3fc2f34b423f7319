"""out = (rms(x) * weight + residual) * scalar, rows of [T, H]. Imports no triton.

EAGER rounds the normed row, the sum, and the product: the end of `Gemma4TextDecoderLayer.forward` in transformers'
modeling_gemma4.py. Overflow, NaN and inf: as in rmsnorm_add.
"""

from __future__ import annotations

from gemma4_kernels.rmsnorm_add.spec import AXES, TOLERANCES
from gemma4_kernels.rounding import ROW_CASES

__all__ = ["AXES", "CASES", "EAGER_ROUNDINGS", "TOLERANCES"]

CASES = ROW_CASES
# out: the norm, the sum, the product. See Rounding.EAGER.
EAGER_ROUNDINGS = (3,)
