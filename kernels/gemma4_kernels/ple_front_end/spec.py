"""out = (rms(projection * H^-0.5) * weight + ple) * 2^-0.5, each [T, L, P], one norm per token and layer.

Without ple: rms(projection * H^-0.5) * weight, not scaled by 2^-0.5. Both factors are numbers of Python, as in
`Gemma4TextModel.project_per_layer_inputs` of transformers' modeling_gemma4.py; SGLang 0.5.13.post1 keeps them as
tensors of the model's dtype. EAGER rounds after the first factor, the norm, the sum and the second factor. Imports no
triton.
"""

from __future__ import annotations

from typing import NamedTuple

from gemma4_kernels.rmsnorm_add.spec import TOLERANCES

__all__ = ["AXES", "CASES", "TOLERANCES"]


class Case(NamedTuple):
    """A size that the tests run. `interpreted`: small enough for the Triton interpreter."""

    name: str
    tokens: int
    layers: int
    width: int
    hidden: int
    interpreted: bool = True


CASES = (
    Case("no-tokens", 0, 35, 256, 1536),
    Case("e2b-one-token", 1, 35, 256, 1536),
    Case("e4b-one-token", 1, 42, 256, 2560, interpreted=False),
    Case("seven-tokens", 7, 2, 256, 2560),
    Case("odd-width", 2, 5, 77, 1537),
    Case("one-layer", 9, 1, 32, 2816),
    Case("decode", 64, 35, 256, 1536, interpreted=False),
    Case("prefill", 4097, 35, 256, 1536, interpreted=False),
)
AXES = {"layers": (35, 42), "width": (256,), "tokens": (1, 8, 64, 512, 4096, 32768)}
# The norm, the sum, the second factor; the first factor's rounding is the same everywhere. See Rounding.EAGER.
EAGER_ROUNDINGS = 3
