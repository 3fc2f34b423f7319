"""Where SGLang has what the runtime reads of it, by release; None where it has nothing."""

from __future__ import annotations

from gemma4_runtime.releases import BASE

# Every name, for the release that the patches were written for; behind it what differs in later ones.
_BASE: dict[str, str | None] = {
    "attention_backends_of": None,
    "sglang_version": "sglang.__version__",
    "SGLangBackend": "sglang.srt.compilation.backend.SGLangBackend",
    "piecewise_context": "sglang.srt.compilation.piecewise_context_manager.get_forward_context",
    "graph_capture_stream": "sglang.srt.compilation.piecewise_context_manager.get_pcg_capture_stream",
    "is_in_piecewise_cuda_graph": "sglang.srt.compilation.piecewise_context_manager.is_in_piecewise_cuda_graph",
    "EditSpec": "sglang.srt.debug_utils.source_patcher.EditSpec",
    "PatchApplicationError": "sglang.srt.debug_utils.source_patcher.PatchApplicationError",
    "PatchState": "sglang.srt.debug_utils.source_patcher.PatchState",
    "patch_function": "sglang.srt.debug_utils.source_patcher.patch_function",
    "ComponentType": None,
    "envs": "sglang.srt.environ.envs",
    "AttentionBackend": "sglang.srt.layers.attention.base_attn_backend.AttentionBackend",
    "WrapperDispatch": "sglang.srt.layers.attention.flashinfer_backend.WrapperDispatch",
    "HybridAttnBackend": "sglang.srt.layers.attention.hybrid_attn_backend.HybridAttnBackend",
    "TritonAttnBackend": "sglang.srt.layers.attention.triton_backend.TritonAttnBackend",
    "TRTLLMHAAttnBackend": "sglang.srt.layers.attention.trtllm_mha_backend.TRTLLMHAAttnBackend",
    "VisionFlash3Attention": "sglang.srt.layers.attention.vision.VisionFlash3Attention",
    "VisionFlash4Attention": "sglang.srt.layers.attention.vision.VisionFlash4Attention",
    "VisionSdpaAttention": "sglang.srt.layers.attention.vision.VisionSdpaAttention",
    "VisionTritonAttention": "sglang.srt.layers.attention.vision.VisionTritonAttention",
    "get_attention_tp_size": "sglang.srt.layers.dp_attention.get_attention_tp_size",
    "gemma_dual_rmsnorm_residual_scalar": "sglang.srt.layers.gemma4_fused_ops.gemma_dual_rmsnorm_residual_scalar",
    "gemma_rmsnorm_residual_scalar": "sglang.srt.layers.gemma4_fused_ops.gemma_rmsnorm_residual_scalar",
    "Gemma4RMSNorm": "sglang.srt.layers.layernorm.Gemma4RMSNorm",
    "RMSNorm": "sglang.srt.layers.layernorm.RMSNorm",
    "GeluAndMul": "sglang.srt.layers.activation.GeluAndMul",
    "MergedColumnParallelLinear": "sglang.srt.layers.linear.MergedColumnParallelLinear",
    "QKVParallelLinear": "sglang.srt.layers.linear.QKVParallelLinear",
    "ReplicatedLinear": "sglang.srt.layers.linear.ReplicatedLinear",
    "RowParallelLinear": "sglang.srt.layers.linear.RowParallelLinear",
    "UnquantizedLinearMethod": "sglang.srt.layers.quantization.unquant.UnquantizedLinearMethod",
    "FusedMoE": "sglang.srt.layers.moe.fused_moe_triton.layer.FusedMoE",
    "UnquantizedFusedMoEMethod": "sglang.srt.layers.quantization.unquant.UnquantizedFusedMoEMethod",
    "RadixAttention": "sglang.srt.layers.radix_attention.RadixAttention",
    "RotaryEmbedding": "sglang.srt.layers.rotary_embedding.base.RotaryEmbedding",
    "Gemma4RotaryEmbedding": "sglang.srt.layers.rotary_embedding.rope_variant.Gemma4RotaryEmbedding",
    "mm_utils": "sglang.srt.managers.mm_utils",
    "FINISH_ABORT": "sglang.srt.managers.schedule_batch.FINISH_ABORT",
    "SWATokenToKVPoolAllocator": "sglang.srt.mem_cache.allocator.swa.SWATokenToKVPoolAllocator",
    "get_alloc_reserve_per_decode": "sglang.srt.mem_cache.common.get_alloc_reserve_per_decode",
    "MHATokenToKVPool": "sglang.srt.mem_cache.memory_pool.MHATokenToKVPool",
    "KVWriteLoc": None,
    "SWAKVPool": "sglang.srt.mem_cache.swa_memory_pool.SWAKVPool",
    "get_is_capture_mode": "sglang.srt.model_executor.cuda_graph_runner.get_is_capture_mode",
    "CaptureHiddenMode": "sglang.srt.model_executor.forward_batch_info.CaptureHiddenMode",
    "ForwardMode": "sglang.srt.model_executor.forward_batch_info.ForwardMode",
    "forward_context": "sglang.srt.model_executor.forward_context.forward_context",
    "get_attn_backend": "sglang.srt.model_executor.forward_context.get_attn_backend",
    "get_forward_context": "sglang.srt.model_executor.forward_context.get_forward_context",
    "has_forward_context": "sglang.srt.model_executor.forward_context.has_forward_context",
    "HybridSWAPoolConfigurator": "sglang.srt.model_executor.pool_configurator.HybridSWAPoolConfigurator",
    "Gemma3MLP": "sglang.srt.models.gemma3_causal.Gemma3MLP",
    "Gemma3TextScaledWordEmbedding": "sglang.srt.models.gemma3_causal.Gemma3TextScaledWordEmbedding",
    "Gemma4Attention": "sglang.srt.models.gemma4_causal.Gemma4Attention",
    "Gemma4TextModel": "sglang.srt.models.gemma4_causal.Gemma4TextModel",
    "Gemma4ForConditionalGeneration": "sglang.srt.models.gemma4_mm.Gemma4ForConditionalGeneration",
    "Gemma4VisionEncoder": "sglang.srt.models.gemma4_vision.Gemma4VisionEncoder",
    "apply_multidimensional_rope": "sglang.srt.models.gemma4_vision._apply_multidimensional_rope",
    "HookRegistry": "sglang.srt.plugins.hook_registry.HookRegistry",
    "HookSource": "sglang.srt.plugins.hook_registry.HookSource",
    "HookType": "sglang.srt.plugins.hook_registry.HookType",
    "apply_scaling_penalties": "sglang.srt.sampling.penaltylib.repetition_penalty.apply_scaling_penalties",
    "SamplingBatchInfo": "sglang.srt.sampling.sampling_batch_info.SamplingBatchInfo",
    "get_global_server_args": "sglang.srt.server_args.get_global_server_args",
    "SpeculativeAlgorithm": "sglang.srt.speculative.spec_info.SpeculativeAlgorithm",
    "TreeMaskMode": "sglang.srt.speculative.eagle_utils.TreeMaskMode",
    "resolving_view": None,
    "flatten_nested_list": "sglang.srt.utils.flatten_nested_list",
    "get_parallel": None,
    "get_config": "sglang.srt.utils.hf_transformers_utils.get_config",
    "use_intel_amx_backend": "sglang.srt.utils.use_intel_amx_backend",
}

_FUSED_OPS = "sglang.kernels.ops.layernorm.gemma4_fused_ops"
# Of 0.5.17 and of 0.5.23 alike.
_SINCE_0_5_17: dict[str, str | None] = {
    "piecewise_context": None,
    "graph_capture_stream": None,
    "is_in_piecewise_cuda_graph": None,
    "get_attention_tp_size": None,
    "KVWriteLoc": "sglang.srt.mem_cache.memory_pool.KVWriteLoc",
    "gemma_dual_rmsnorm_residual_scalar": f"{_FUSED_OPS}.gemma_dual_rmsnorm_residual_scalar",
    "gemma_rmsnorm_residual_scalar": f"{_FUSED_OPS}.gemma_rmsnorm_residual_scalar",
    "get_alloc_reserve_per_decode": "sglang.srt.mem_cache.allocation_sizing.get_alloc_reserve_per_decode",
    "get_is_capture_mode": "sglang.srt.model_executor.runner_utils.capture_mode.get_is_capture_mode",
}

_RESOLUTION = "sglang.srt.arg_groups.model_override_base"
_PIECEWISE = "sglang.srt.model_executor.runner_backend_utils.tc_piecewise_cuda_graph.context_manager"
_SINCE_0_5_23: dict[str, str | None] = {
    "attention_backends_of": f"{_RESOLUTION}.attention_backends_of",
    "ComponentType": "sglang.srt.mem_cache.unified_cache.component_type.ComponentType",
    "get_global_server_args": "sglang.srt.runtime_context.get_server_args",
    "graph_capture_stream": "sglang.srt.compilation.compile_phase.get_pcg_capture_stream",
    "is_in_piecewise_cuda_graph": f"{_PIECEWISE}.is_in_tc_piecewise_cuda_graph",
    "piecewise_context": f"{_PIECEWISE}.get_tc_piecewise_forward_context",
    "get_parallel": "sglang.srt.runtime_context.get_parallel",
    "resolving_view": f"{_RESOLUTION}.resolving_view",
}

NAMES: dict[str, dict[str, str | None]] = {
    BASE: _BASE,
    "0.5.17": {**_BASE, **_SINCE_0_5_17},
    "0.5.23": {**_BASE, **_SINCE_0_5_17, **_SINCE_0_5_23},
}
"""By release, name to dotted path; None: there is nothing to read."""
