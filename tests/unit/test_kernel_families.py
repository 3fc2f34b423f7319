"""Which family and which role a kernel's name has: as demangled, as mangled, as a Triton kernel is called."""

import re

import pytest

import trace_examples as ex
from gemma4_triage.step_profile.kernel_families import FAMILIES, OUR_KERNELS, TITLES, family_of
from gemma4_triage.step_profile.replaceable_sequences import FAMILY, REPLACEABLE, ROLES, role_of

CUDA_NORM = "void flashinfer::norm::RMSNormKernel<8u, __nv_bfloat16>(__nv_bfloat16*, __nv_bfloat16*, float)"
CUDA_ADD_NORM = "void flashinfer::norm::FusedAddRMSNormKernel<8u, __nv_bfloat16>(__nv_bfloat16*, __nv_bfloat16*, float)"
MANGLED_NORM = "_ZN10flashinfer4norm13RMSNormKernelILj8E13__nv_bfloat16EEvPT0_S3_S3_jjjff"
MANGLED_MUL = (
    "_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_13BinaryFunctorIfffNS0_15binary_internal10MulFunctorIfEEEE"
)

KNOWN = {
    "attention": [
        ex.XQA,
        *ex.TRITON_ATTENTION,
        "_fwd_kernel",
        "fmhaSm100aKernel_QkvBfloat16OBfloat16H256PagedKvDenseP64VarSeqQ8Kv128PersistentSwapsAbForGen",
        "void flashinfer::BatchDecodeWithPagedKVCacheKernel<(flashinfer::PosEncodingMode)0, 2u, 2u>",
        "void cutlass::device_kernel<flash::enable_sm90<flash::FlashAttnFwdSm90<flash::CollectiveMainloopFwdSm90>>>",
        "_ZN10flashinfer33BatchPrefillWithPagedKVCacheKernelINS_12KernelTraitsI",
    ],
    "gemm": [
        ex.GEMM,
        ex.SPLIT_K,
        "void cutlass::Kernel2<cutlass_80_wmma_tensorop_bf16_s161616gemm_bf16_16x16_128x2_tn_align8>",
        "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize64x64x64_warpgroupsize1x1x1_execute_segment_k_off",
        "void gemv2T_kernel_val<int, int, __nv_bfloat16, __nv_bfloat16, __nv_bfloat16, float, 128, 16, 4>",
    ],
    "moe": [ex.MOE, "moe_align_block_size_kernel", "_moe_sum_reduce_kernel", "count_and_sort_expert_tokens_kernel"],
    "norm": [
        ex.NORM,
        ex.ADD_NORM,
        ex.QUANT_NORM,
        CUDA_NORM,
        MANGLED_NORM,
        ex.DUAL,
        "_gemma_rmsnorm_residual_kernel",
        "rmsnorm_cta",
    ],
    "rope": [
        ex.QK_NORM,
        ex.HEADS_NORM,
        ex.ROPE,
        "void flashinfer::BatchQKApplyRotaryPosIdsCosSinCacheKernel<true, 128u>",
    ],
    "kv": [ex.STORE, "create_flashinfer_kv_indices_triton", "alloc_decode_kernel", "write_req_to_token_pool_triton"],
    "routing": [ex.SGLANG_ROUTING, "_gemma_routing_post_topk_kernel", "topkGatingSoftmax<float, 8, 128, 4, 16, 32>"],
    "sampling": [ex.ARG_MAX, "void flashinfer::sampling::TopKTopPSamplingFromProbKernel<1024u>", "softcap_out_kernel"],
    "elementwise": [ex.FILL, ex.ADD, ex.MUL, ex.GELU, ex.ACT, MANGLED_MUL],
    "communication": ["ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"],
    "memory": [ex.COPY, "Memset (Device)", "Memcpy HtoD (Pinned -> Device)"],
    "gemma4-triage": list(OUR_KERNELS),
    "other": ["zzz"],
}


@pytest.mark.parametrize(("family", "name"), [(family, name) for family, names in KNOWN.items() for name in names])
def test_family(family, name):
    assert family_of(name) == family


def test_every_family_has_an_example():
    assert set(KNOWN) == set(TITLES) == {family.id for family in FAMILIES} | {"other"}


def test_sglangs_routing_is_not_ours():
    assert family_of("_gemma4_routing_kernel") == "routing"
    assert family_of("xrouting_kernel") == "other"
    assert family_of("Routing_Kernel") == "other"


def test_our_kernels_are_those_that_there_are(request):
    """Every kernel that a launch.py of ours launches, by the name that a trace shows."""
    folder = request.config.rootpath / "kernels" / "gemma4_kernels"
    found = {}
    for path in [*folder.glob("*/*kernel.py"), *folder.glob("*/*.cu")]:
        for name in re.findall(r"(?:^|^def |\) )(\w+_kernel)\(", path.read_text(), re.MULTILINE):
            found[name] = path.parent.name
    assert found == OUR_KERNELS


def test_every_op_of_the_model_says_what_it_replaces():
    # One kernel for another is no launch less, and the parts of layer_tail are ops that say it themselves. How many
    # launches SGLang's experts are depends on rows and plans. Those ahead of and behind the layers are torch's
    # elementwise kernels, which stand elsewhere too.
    saves_no_launch = {"page_guard", "window_lists", "small_m_linear", "decode_attention", "layer_tail"}
    saves_no_launch |= {"routed_experts", "beside_experts", "token_embeddings", "capped_logits"}
    assert {op.op for op in REPLACEABLE} == set(OUR_KERNELS.values()) - saves_no_launch
    order = [op.op for op in REPLACEABLE]
    assert all(order.index(op.includes) < order.index(op.op) for op in REPLACEABLE if op.includes)


def test_every_word_of_a_sequence_is_a_role_or_families():
    roles, families = {role for role, _ in ROLES}, {family.id for family in FAMILIES}
    for op in REPLACEABLE:
        for word in " ".join(op.sequences).split():
            assert set(word.strip("[]").split(",")) <= families if word.startswith("[") else word in roles


@pytest.mark.parametrize(
    ("role", "name"),
    [
        ("norm", ex.NORM),
        ("norm", CUDA_NORM),
        ("norm", MANGLED_NORM),
        ("add_norm", CUDA_ADD_NORM),
        ("q_k_norm", ex.HEADS_NORM),
        (FAMILY + "norm", ex.QUANT_NORM),
        ("add_norm", ex.ADD_NORM),
        ("add_norm", "void fused_add_rmsnorm_reg_kernel<32>(float*)"),
        ("q_k_norm", ex.QK_NORM),
        ("rope", ex.ROPE),
        ("fill", ex.FILL),
        (FAMILY + "gemma4-triage", "qk_norm_rope_kernel"),
        ("add", ex.ADD),
        ("mul", ex.MUL),
        ("mul", MANGLED_MUL),
        ("gelu", ex.GELU),
        (FAMILY + "elementwise", ex.ACT),
        (FAMILY + "gemm", ex.GEMM),
        (FAMILY + "norm", "void flashinfer::norm::RMSNormQuantKernel<8u, __nv_bfloat16>(float*)"),
        (FAMILY + "gemma4-triage", "triple_rmsnorm_kernel"),
        ("our_norm_add_scale", "rmsnorm_residual_scalar_kernel"),
        ("sglang_norm_add_scale", "_gemma_rmsnorm_residual_kernel"),
    ],
)
def test_role(role, name):
    assert role_of(name) == role
