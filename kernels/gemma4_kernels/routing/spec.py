"""Top-k, softmax and per-expert scale of a mixture of experts. Imports no triton.

logits [T, E] to weights [T, k] fp32 and ids [T, k] int32, in descending order, ties to the lowest id:

FP32    ids are the k largest logits. weight_j = exp(l_j - l_0) / sum_i exp(l_i - l_0) * scale[id_j], all in fp32. That
        is the softmax over all experts in fp32, then top-k, then renormalised.
EAGER   `Gemma4TextRouter` of transformers' modeling_gemma4.py on logits of this dtype: softmax over all experts,
        rounded; ids are the k largest of these; divided by their sum, rounded each; times the scale, rounded. Logits
        that round to one probability are a tie here, and eager's torch.topk leaves open which id it takes.

Order: -0 equals +0. A NaN of any sign and payload is above +inf, and all NaN are equal, as in torch.sort(stable=True,
descending=True) on a CPU; on CUDA that has a NaN with the sign bit below -inf. Ids are k different experts in 0..E-1,
whatever the logits are.

Weights are what IEEE arithmetic gives, as in torch.softmax: a row whose largest logit is NaN, +inf or -inf has NaN in
every weight. In EAGER mode such a row has no probabilities: NaN for each expert, so its ids are 0..k-1.
"""

from __future__ import annotations

from typing import NamedTuple

from gemma4_kernels.rounding import Tolerance

# Ids take 8 bits of a packed key.
MAX_EXPERTS, MAX_TOP_K = 256, 16


class Case(NamedTuple):
    """A shape that the tests run. `interpreted`: small enough for the Triton interpreter."""

    name: str
    tokens: int
    experts: int
    top_k: int
    interpreted: bool = True


CASES = (
    Case("no-tokens", 0, 128, 8),
    Case("one-token", 1, 128, 8),
    Case("26b", 7, 128, 8),
    Case("decode", 64, 128, 8, interpreted=False),
    Case("tokens-of-a-tile-and-one", 5, 128, 8),
    Case("one-expert", 3, 1, 1),
    Case("all-experts", 3, 8, 8),
    Case("top-1", 7, 128, 1),
    Case("most", 7, 256, 16),
    Case("odd-experts", 7, 77, 5),
    Case("fewer-experts-than-lanes", 7, 17, 16),
    Case("prefill", 4097, 128, 8, interpreted=False),
    Case("long-prefill", 32768, 128, 8, interpreted=False),
)
AXES = {"tokens": (1, 8, 64, 512, 4096, 32768), "experts": (128,), "top_k": (8,)}

TOLERANCES = {
    "ids": Tolerance(0, "integers, defined for every bit pattern of the logits"),
    "weights": Tolerance(2e-6, "fp32: exp2 of a rounded product, a sum of up to 16 terms in another order, a quotient"),
    "weights_eager": Tolerance(2**-7, "a probability on a rounding boundary: one unit of bf16, in sum and in quotient"),
}
