"""Which launches of SGLang 0.5.13.post1 each of our fused ops stands for. This table is all there is to it.

A sequence is words with spaces between: the role of each launch that would go, in the order of one stream. A word in
brackets names families whose launches may stand in between, any number of them, and stay: the GEMMs between the norms
of a mixture of experts. Read off `Gemma4DecoderLayer.forward`, `Gemma4Attention.forward` and
`Gemma4TextModel.project_per_layer_inputs` in models/gemma4_causal.py, and layers/gemma4_fused_ops.py.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from gemma4_triage.step_profile.kernel_families import OUR_KERNELS, family_of

FAMILY = "family "
"""Before the family of a kernel that has no role."""

# The first row that fits wins; searched for in the whole name.
ROLES: tuple[tuple[str, str], ...] = (
    ("q_k_norm", r"qkv?_?(?:rms_?)?norm"),
    ("rope", r"(?<!p)rope|rotary"),
    ("sglang_routing", r"_gemma4_routing_kernel"),
    ("sglang_post_topk", r"_gemma_routing_post_topk_kernel"),
    ("sglang_norm_add_scale", r"_gemma_rmsnorm_residual_kernel"),
    ("sglang_two_norms_norm_add_scale", r"_gemma_dual_rmsnorm_residual_kernel"),
    ("our_norm_add_scale", r"\Armsnorm_residual_scalar_kernel\Z"),
    ("add_norm", r"fused_?add_?rms_?norm"),
    ("norm", r"rms_?norm(?!.*quant)"),
    ("topk", r"gatherTopK|radixFindKth|topk"),
    ("sort", r"bitonicSort|radixSort"),
    ("add", r"CUDAFunctor_add"),
    ("mul", r"MulFunctor"),
    ("gelu", r"GeluCUDAKernel"),
    ("fill", r"FillFunctor"),
)


class Replaceable(NamedTuple):
    """sequences: tried in this order. includes: an op whose launches are among this one's; the two do not add up."""

    op: str
    what: str
    sequences: tuple[str, ...]
    includes: str = ""


# Order: an op takes the launches of its matches away from those below it, so that the end of one sequence is not
# another one. An op with `includes` gets that op's launches back and takes none away: another cut through the same.
REPLACEABLE: tuple[Replaceable, ...] = (
    Replaceable(
        "triple_rmsnorm",
        "post-attention norm, sum, the norms of dense MLP, router and experts",
        ("norm add_norm [gemm,elementwise] norm [gemm] norm",),
    ),
    Replaceable("ple_front_end", "the per-layer inputs of all layers", ("mul norm add mul",)),
    Replaceable("rmsnorm_residual_scalar", "norm, sum, layer scalar", ("norm add mul", "sglang_norm_add_scale")),
    Replaceable("post_attention_norms", "post-attention norm, sum, pre-MLP norm", ("norm add_norm",)),
    Replaceable("gelu_tanh_mul", "the gate of a per-layer embedding", ("gelu mul",)),
    Replaceable("rmsnorm_add", "post-MLP norm, sum", ("norm add",)),
    Replaceable(
        "routing",
        "top-k experts, softmax, per-expert scale",
        ("sglang_routing", "topk sort sglang_post_topk", "topk sglang_post_topk"),
    ),
    Replaceable(
        "qk_norm_rope",
        "the norms of Q, K and V, the rotation; without keys of its own a layer also fills some with zeros",
        ("q_k_norm fill rope", "q_k_norm rope"),
    ),
    Replaceable(
        "cross_layer_norm",
        "a layer's tail and the next layer's input norm",
        (
            "norm add mul norm",
            "sglang_two_norms_norm_add_scale norm",
            "sglang_norm_add_scale norm",
            "our_norm_add_scale norm",
        ),
        includes="rmsnorm_residual_scalar",
    ),
)

_COMPILED = [(role, re.compile(pattern, re.IGNORECASE)) for role, pattern in ROLES]


def role_of(name: str) -> str:
    """Return the role of a kernel in a sequence; FAMILY and its family if it has none there."""
    role = next((role for role, pattern in _COMPILED if pattern.search(name)), None)
    if role is None or (name in OUR_KERNELS and not role.startswith("our_")):
        return FAMILY + family_of(name)
    return role
