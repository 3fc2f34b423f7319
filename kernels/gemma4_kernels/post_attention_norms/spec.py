"""residual' = rms(attention) * weight + residual; normed = rms(residual') * next_weight. Imports no triton.

EAGER rounds the first norm, the sum and the second norm, and takes the second norm of the rounded sum:
`Gemma4TextDecoderLayer.forward` in transformers' modeling_gemma4.py. FP32 takes it of the sum before it is rounded.
Overflow, NaN and inf: as in rmsnorm_add.
"""

from __future__ import annotations

from gemma4_kernels.rmsnorm_add.spec import AXES, TOLERANCES
from gemma4_kernels.rounding import ROW_CASES

__all__ = ["AXES", "CASES", "EAGER_ROUNDINGS", "TOLERANCES"]

CASES = ROW_CASES
# residual': the norm, the sum. normed: and its own. See Rounding.EAGER.
EAGER_ROUNDINGS = (2, 3)
