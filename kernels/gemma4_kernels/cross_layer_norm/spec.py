"""A layer's tail and the norm that follows it, rows of [T, H]. Imports no triton.

branch = x, or in a mixture of experts rms(dense) * dense_weight + rms(experts) * experts_weight
hidden = (rms(branch) * weight + residual) * scalar
normed = rms(hidden) * next_weight

hidden is the next layer's residual, what aux-hidden captures hold, and what a pipeline stage sends on; normed is the
next layer's input, or after the last layer the model's output. boundary.py says which of them a layer needs, and of
which rows.

EAGER rounds after every one of these operations, the norm of each branch included, and takes normed of the rounded
hidden: `Gemma4TextDecoderLayer.forward` in transformers' modeling_gemma4.py. FP32 rounds at the two stores. Overflow,
NaN and inf: as in rmsnorm_add.
"""

from __future__ import annotations

from gemma4_kernels.rmsnorm_add.spec import AXES, TOLERANCES
from gemma4_kernels.rounding import ROW_CASES

__all__ = ["AXES", "CASES", "EAGER_ROUNDINGS", "MOE_EAGER_ROUNDINGS", "TOLERANCES"]

CASES = ROW_CASES
# Of hidden: the norm, the sum, the product. Of normed: and its own. With experts the branch has two more, a norm and
# the sum. See Rounding.EAGER.
EAGER_ROUNDINGS, MOE_EAGER_ROUNDINGS = (3, 4), (5, 6)
