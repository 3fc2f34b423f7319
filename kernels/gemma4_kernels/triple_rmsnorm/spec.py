"""One op: residual' = rms(attention) * weight + residual; u = residual' / rms(residual'), and three products of u.

Rows of [T, H]:

router   u * s, for the router's projection. s is the router's scale times H^-0.5, in fp32
dense    u * dense_weight, for the dense MLP
experts  u * experts_weight, for the experts

EAGER rounds the first norm and the sum, takes u of the rounded sum, and rounds the three: the router's after the norm,
after the scale and after H^-0.5, as `Gemma4TextRouter` of transformers' modeling_gemma4.py does. FP32 takes u of the
sum before it is rounded. residual' is a new tensor: SGLang 0.5.13.post1 adds into the layer's input, which spoils
hidden states that were captured there. Overflow, NaN and inf: as in rmsnorm_add. Imports no triton.
"""

from __future__ import annotations

from gemma4_kernels.rmsnorm_add.spec import TOLERANCES
from gemma4_kernels.rounding import ROW_CASES

__all__ = ["AXES", "CASES", "EAGER_ROUNDINGS", "TOLERANCES"]

CASES = ROW_CASES
AXES = {"width": (2816,), "rows": (1, 8, 64, 512, 4096, 32768)}
# residual': the norm, the sum. Then their own, of which the router has three. See Rounding.EAGER.
EAGER_ROUNDINGS = (2, 5, 3, 3)
