"""Which kernel is of which family, by its name. This table is all there is to it: the first row that fits wins.

A pattern is searched for in the whole name without regard to case, so that it fits demangled, mangled and templated
names alike. Names are those of SGLang 0.5.13.post1 and what it launches: its Triton and JIT kernels, sgl-kernel,
FlashInfer 0.6.12, cuBLAS, CUTLASS, torch 2.11. A name that no row knows is `other`, and is listed.
"""

from __future__ import annotations

import re
from typing import NamedTuple

OURS, OTHER = "gemma4-triage", "other"

OUR_KERNELS = {
    "routing_kernel": "routing",
    "rmsnorm_add_kernel": "rmsnorm_add",
    "gelu_tanh_mul_kernel": "gelu_tanh_mul",
    "rmsnorm_residual_scalar_kernel": "rmsnorm_residual_scalar",
    "post_attention_norms_kernel": "post_attention_norms",
    "ple_front_end_kernel": "ple_front_end",
    "triple_rmsnorm_kernel": "triple_rmsnorm",
    "cross_layer_norm_kernel": "cross_layer_norm",
    "qk_norm_rope_kernel": "qk_norm_rope",
    "small_m_linear_kernel": "small_m_linear",
    "streamed_product_kernel": "small_m_linear",
    "routed_experts_kernel": "routed_experts",
    "experts_down_kernel": "routed_experts",
    "dense_beside_router_kernel": "beside_experts",
    "experts_beside_dense_kernel": "beside_experts",
    "layer_tail_kernel": "layer_tail",
    "decode_attention_kernel": "decode_attention",
    "clustered_attention_kernel": "decode_attention",
    "page_guard_kernel": "page_guard",
    "window_lists_kernel": "window_lists",
    "token_embeddings_kernel": "token_embeddings",
    "capped_logits_kernel": "capped_logits",
}
"""Our kernels in full, as a trace names them, and the op of each."""


class Family(NamedTuple):
    """title: on screen. pattern: a regular expression."""

    id: str
    title: str
    pattern: str


# Order: what is named after its place in the model comes before what is named after its arithmetic. A MoE's GEMM is
# MoE, a norm in CUTLASS's DSL is a norm, a softmax of the router is routing.
FAMILIES: tuple[Family, ...] = (
    Family(OURS, "gemma4-triage's own", r"\A(?-i:" + "|".join(OUR_KERNELS) + r")\Z"),
    Family("memory", "memcpy, memset", r"\Amem(?:cpy|set)\b|memcpy_triton|\A__amd_rocclr_(?:copy|fill)"),
    Family(
        "communication",
        "communication",
        r"nccl|all_?reduce|cross_device_reduce|all_?gather|reduce_?scatter|alltoall|nvshmem|deep_?ep|multimem",
    ),
    Family(
        "routing",
        "routing, top-k",
        r"gemma4_routing|routing_post_topk|topk_?gating|moe_topk|moe_fused_gate|grouped_topk|topk_(?:softmax|sigmoid)"
        r"|moe_fused_router|moe_hash_topk",
    ),
    Family("moe", "MoE", r"moe|expert|ep_(?:gather|scatter)|group(?:ed)?_?gemm|swiglu_gate_scatter"),
    Family(
        "attention",
        "attention",
        r"kernel_mha|fmha|flash_?(?:attn|fwd|prefill|decode)|flash::|_fwd_(?:grouped_)?kernel"
        r"|Batch(?:Decode|Prefill|Attention)|Single(?:Decode|Prefill)|merge_?states?|(?:^|[^a-z])mla|attention"
        r"|persistent_?variable_?length",
    ),
    Family("rope", "rope, q/k norm", r"qkv?_?(?:rms_?)?norm|(?<!p)rope|rotary"),
    Family("norm", "norm", r"rms_?norm|layer_?norm|ln_fwd_kernel"),
    Family("gemm", "GEMM", r"nvjet|gemm|gemv|cublas|split_?k|xmma|matmul|cutlass|dot_kernel|wgmma"),
    Family(
        "kv",
        "KV write, indices",
        r"store_?kv|set_(?:mla_)?kv|kv_?(?:indices|indptr|cache|splits|buffer)|reshape_and_cache|page_table|page_indices"
        r"|alloc_(?:decode|extend)|req_to_token|last_loc|metadata|swa_(?:token|spec)|cache_locs?|clamp_position"
        r"|resolve_future|compute_position|index|gather|scatter|embedding",
    ),
    Family(
        "sampling",
        "sampling, logits",
        r"arg_?max|sampl|soft_?max|soft_?cap|top_?[kp]|penal|logit|multinomial|vocab_mask|sort|bonus_tokens"
        r"|verify_?tree|build_?tree|renorm|speculative",
    ),
    Family(
        "elementwise",
        "activation, elementwise",
        r"act_and_mul|act_kernel|gelu|silu|elementwise|reduce_kernel|catarray|fill|copy|arange|where|compare|cumsum"
        r"|scan_|distribution_|unrolled",
    ),
)

_COMPILED = [(family, re.compile(family.pattern, re.IGNORECASE)) for family in FAMILIES]
TITLES = {family.id: family.title for family in FAMILIES} | {OTHER: OTHER}


def family_of(name: str) -> str:
    """Return the id of a kernel's family, or `other`."""
    return next((family.id for family, pattern in _COMPILED if pattern.search(name)), OTHER)
