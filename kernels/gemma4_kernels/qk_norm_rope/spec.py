"""Per head of D elements, halves a and b: norm, then a turn of each pair (a_i, b_i) by the angle of its position.

q', k'  n = rms(x) * weight, out = (n_a * cos - n_b * sin, n_b * cos + n_a * sin), "neox" pairs
v'      rms(x): no weight, no turn

One launch for `gemma_qkv_rmsnorm` and the rope kernel behind it in `Gemma4Attention.forward` of SGLang 0.5.13.post1. A
layer that reads another layer's keys and values has q' only; SGLang turns a K of zeros there, because its rope kernel
asks for one. The KV pool's store is left out: a sliding layer's pool translates the location first.

The table is what SGLang keeps as `cos_sin_cache`, as wide as a head in either kind of Gemma-4's layers: in those with
full attention, where a quarter of the pairs turn (rope type "proportional"), `Gemma4RotaryEmbedding` fills it up with
cosines of 1 and sines of 0. On CUDA it is fp32, on a CPU of the model's dtype. A position beyond the table reads what
lies there, as SGLang's kernel does.

EAGER rounds where SGLang's two kernels have tensors in memory: the norm, and the turn of the rounded norm, which is
fp32 within. Transformers' lines round the sines, the cosines and both products, too. FP32 rounds at the store only.
Overflow, NaN and inf: as in rmsnorm_add, within a head; in q and k an inf or NaN reaches its partner by the turn.

Out of place, so that q' is contiguous: SGLang's is a slice of the projection's output, which the FlashInfer and
FlashAttention backends copy first. Imports no triton.
"""

from __future__ import annotations

from typing import NamedTuple

from gemma4_kernels.rmsnorm_add.spec import TOLERANCES

__all__ = ["AXES", "CASES", "EAGER_ROUNDINGS", "MAX_HEAD_DIM", "TOLERANCES"]

MAX_HEAD_DIM = 1024


class Case(NamedTuple):
    """A size that the tests run; kv_heads 0: no k and v. `interpreted`: small enough for the Triton interpreter."""

    name: str
    tokens: int
    q_heads: int
    kv_heads: int
    head_dim: int
    interpreted: bool = True


CASES = (
    Case("no-tokens", 0, 8, 2, 256),
    Case("e4b-one-token", 1, 8, 2, 256),
    Case("e4b-full", 1, 8, 2, 512),
    Case("e4b-shared", 7, 8, 0, 256),
    Case("e4b-seven", 7, 8, 2, 256, interpreted=False),
    Case("26b-full", 1, 16, 2, 512),
    Case("e2b", 2, 8, 1, 256),
    Case("odd-heads", 7, 5, 3, 32),
    Case("one-head", 2, 1, 1, 1024),
    Case("least-head", 3, 3, 1, 2),
    Case("decode", 64, 8, 2, 256, interpreted=False),
    Case("decode-31b", 64, 32, 16, 256, interpreted=False),
    Case("decode-shared", 64, 8, 0, 512, interpreted=False),
    Case("prefill", 4097, 8, 2, 256, interpreted=False),
    Case("prefill-31b-full", 4097, 32, 4, 512, interpreted=False),
    Case("prefill-odd-heads", 4097, 5, 3, 64, interpreted=False),
)
AXES = {
    "heads": ((8, 2), (8, 0), (16, 8), (8, 1), (32, 16)),
    "head_dim": (256, 512),
    "tokens": (1, 8, 64, 512, 4096, 32768),
}
# q and k: the norm, the turn. v: the norm. See Rounding.EAGER.
EAGER_ROUNDINGS = (2, 2, 1)
