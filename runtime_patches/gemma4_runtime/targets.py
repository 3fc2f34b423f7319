"""The only file that names SGLang's dotted paths. A later release needs a new table here and nothing else."""

from __future__ import annotations

from gemma4_runtime.errors import UnsupportedRelease

_SRT = "sglang.srt"
_TRTLLM = f"{_SRT}.layers.attention.trtllm_mha_backend"
_TRITON = f"{_SRT}.layers.attention.triton_backend.TritonAttnBackend"
_FLASHINFER = f"{_SRT}.layers.attention.flashinfer_backend"
_SWA_ALLOCATOR = f"{_SRT}.mem_cache.allocator.swa.SWATokenToKVPoolAllocator"
_PAGED = f"{_SRT}.mem_cache.allocator.paged.PagedTokenToKVPoolAllocator"
_TOKEN = f"{_SRT}.mem_cache.allocator.token.TokenToKVPoolAllocator"
_SCHEDULER = f"{_SRT}.managers.scheduler.Scheduler"
_CHECKER = f"{_SRT}.managers.scheduler_components.invariant_checker.SchedulerInvariantChecker"
_FROZEN = f"{_SRT}.speculative.frozen_kv_mtp_worker.FrozenKVMTPWorker"
_RUNNER = f"{_SRT}.model_executor.model_runner.ModelRunner"
_MTP_GRAPH = f"{_SRT}.speculative.frozen_kv_mtp_cuda_graph_runner.FrozenKVMTPCudaGraphRunner"
_MTP_UTILS = f"{_SRT}.speculative.frozen_kv_mtp_utils"
_GEMMA4_MM = f"{_SRT}.models.gemma4_mm.Gemma4ForConditionalGeneration"
_GEMMA4_VISION = f"{_SRT}.models.gemma4_vision"
_SPEC = f"{_SRT}.speculative.spec_info.SpeculativeAlgorithm"
_EAGLE_V2 = f"{_SRT}.speculative.eagle_info_v2"
_RESULTS = f"{_SRT}.managers.scheduler_components.batch_result_processor.SchedulerBatchResultProcessor"

TARGETS: dict[str, dict[str, str]] = {
    "0.5.13.post1": {
        "trtllm.init": f"{_TRTLLM}.TRTLLMHAAttnBackend.__init__",
        "trtllm.init_metadata": f"{_TRTLLM}.TRTLLMHAAttnBackend.init_forward_metadata",
        "trtllm.layer_table": f"{_TRTLLM}.TRTLLMHAAttnBackend._get_layer_page_table",
        "trtllm.forward_decode": f"{_TRTLLM}.TRTLLMHAAttnBackend.forward_decode",
        "trtllm.forward_extend": f"{_TRTLLM}.TRTLLMHAAttnBackend.forward_extend",
        "trtllm.init_graph_metadata": f"{_TRTLLM}.TRTLLMHAAttnBackend.init_forward_metadata_out_graph",
        "trtllm.resolve_swa_pool": f"{_TRTLLM}.TRTLLMHAAttnBackend._resolve_swa_kv_pool",
        "trtllm.flashinfer": f"{_TRTLLM}.flashinfer",
        "attention.init_in_graph": (
            f"{_SRT}.layers.attention.base_attn_backend.AttentionBackend.init_forward_metadata_in_graph"
        ),
        "triton.init": f"{_TRITON}.__init__",
        "triton.forward_decode": f"{_TRITON}.forward_decode",
        "triton.forward_extend": f"{_TRITON}.forward_extend",
        "triton.init_metadata": f"{_TRITON}.init_forward_metadata",
        "triton.init_graph_metadata": f"{_TRITON}.init_forward_metadata_out_graph",
        "triton.init_graph_state": f"{_TRITON}.init_cuda_graph_state",
        "triton.decode_buffers": f"{_TRITON}._update_decode_kv_buffers",
        "triton.window_buffer": f"{_SRT}.layers.attention.triton_backend.update_sliding_window_buffer",
        "flashinfer.init": f"{_FLASHINFER}.FlashInferAttnBackend.__init__",
        "flashinfer.forward_decode": f"{_FLASHINFER}.FlashInferAttnBackend.forward_decode",
        "flashinfer.forward_extend": f"{_FLASHINFER}.FlashInferAttnBackend.forward_extend",
        "flashinfer.init_metadata": f"{_FLASHINFER}.FlashInferAttnBackend.init_forward_metadata",
        "flashinfer.init_graph_metadata": f"{_FLASHINFER}.FlashInferAttnBackend.init_forward_metadata_out_graph",
        "flashinfer.decode_wrapper": f"{_FLASHINFER}.BatchDecodeWithPagedKVCacheWrapper",
        "flashinfer.prefill_paged_wrapper": f"{_FLASHINFER}.BatchPrefillWithPagedKVCacheWrapper",
        "flashinfer.prefill_ragged_wrapper": f"{_FLASHINFER}.BatchPrefillWithRaggedKVCacheWrapper",
        "flashinfer.fast_decode_plan": f"{_FLASHINFER}.fast_decode_plan",
        "runner.swa_layers": f"{_RUNNER}.adjust_hybrid_swa_layers_for_pp",
        "runner.profile_bytes": (
            f"{_SRT}.model_executor.model_runner_kv_cache_mixin.ModelRunnerKVCacheMixin._profile_available_bytes"
        ),
        "server_args.post_init": f"{_SRT}.server_args.ServerArgs.__post_init__",
        "server_args.last_check": f"{_SRT}.server_args.ServerArgs._handle_other_validations",
        "swa.pool_init": f"{_SRT}.mem_cache.swa_memory_pool.SWAKVPool.__init__",
        "swa.alloc": f"{_SWA_ALLOCATOR}.alloc",
        "swa.alloc_extend": f"{_SWA_ALLOCATOR}.alloc_extend",
        "swa.alloc_extend_tail": f"{_SWA_ALLOCATOR}.alloc_extend_swa_tail",
        "swa.alloc_decode": f"{_SWA_ALLOCATOR}.alloc_decode",
        "swa.set_mapping": f"{_SWA_ALLOCATOR}.set_full_to_swa_mapping",
        "swa.free": f"{_SWA_ALLOCATOR}.free",
        "swa.free_swa": f"{_SWA_ALLOCATOR}.free_swa",
        "swa.restore_state": f"{_SWA_ALLOCATOR}.restore_state",
        "alloc.restore_state": f"{_SRT}.mem_cache.allocator.base.BaseTokenToKVPoolAllocator.restore_state",
        "alloc.free_group_begin": f"{_SRT}.mem_cache.allocator.base.BaseTokenToKVPoolAllocator.free_group_begin",
        "alloc.free_group_end": f"{_SRT}.mem_cache.allocator.base.BaseTokenToKVPoolAllocator.free_group_end",
        "cache.release": f"{_SRT}.mem_cache.common.release_kv_cache",
        "swa_radix.insert": f"{_SRT}.mem_cache.swa_radix_cache.SWARadixCache.insert",
        "results.process_decode": f"{_RESULTS}.process_batch_result_decode",
        "results.apply_grammar": f"{_RESULTS}._apply_decode_grammar",
        "mtp.bind_context": f"{_FROZEN}._bind_kv_context",
        "mtp.preprocess_idle": f"{_FROZEN}._draft_preprocess_idle",
        "mtp.target_view": f"{_MTP_UTILS}.frozen_kv_target_view",
        "mtp.pool_view": f"{_MTP_UTILS}.target_kv_pool_view",
        "mtp.init_draft_backend": f"{_FROZEN}._init_draft_attn_backend",
        "mtp.draft": f"{_FROZEN}.draft",
        "mtp.verify": f"{_FROZEN}.verify",
        "mtp.expand_for_topk": f"{_FROZEN}._expand_for_topk_draft",
        "mtp.graph_runner_init": f"{_MTP_GRAPH}.__init__",
        "speculative.resolve_alias": f"{_SRT}.arg_groups.speculative_hook._resolve_speculative_algorithm_alias",
        "gemma4.attention_init": f"{_SRT}.models.gemma4_causal.Gemma4Attention.__init__",
        "gemma4.attention_forward": f"{_SRT}.models.gemma4_causal.Gemma4Attention.forward",
        "gemma4.layer_forward": f"{_SRT}.models.gemma4_causal.Gemma4DecoderLayer.forward",
        "gemma4.moe_init": f"{_SRT}.models.gemma4_causal.Gemma4MoE.__init__",
        "gemma4.text_forward": f"{_SRT}.models.gemma4_causal.Gemma4TextModel.forward",
        "forward_batch.init_new": f"{_SRT}.model_executor.forward_batch_info.ForwardBatch.init_new",
        "gemma4.text_model_init": f"{_SRT}.models.gemma4_causal.Gemma4TextModel.__init__",
        "gemma4.project_ple": f"{_SRT}.models.gemma4_causal.Gemma4TextModel.project_per_layer_inputs",
        "gemma4.per_layer_inputs": f"{_GEMMA4_MM}.get_per_layer_inputs",
        "gemma4.image_feature": f"{_GEMMA4_MM}.get_image_feature",
        "gemma4.video_feature": f"{_GEMMA4_MM}.get_video_feature",
        "gemma4.vision_positions": f"{_GEMMA4_VISION}.Gemma4VisionPatchEmbedder._position_embeddings",
        "gemma4.vision_attention": f"{_GEMMA4_VISION}.Gemma4VisionAttention.forward",
        "gemma4.vision_pooling": f"{_GEMMA4_VISION}.Gemma4VisionPooler._avg_pool_by_positions",
        "multimodal.chunked_embedding": f"{_SRT}.managers.mm_utils._get_chunked_prefill_embedding",
        "grammar.apply_mask": f"{_SRT}.constrained.xgrammar_backend.XGrammarGrammar.apply_vocab_mask",
        "scheduler.process_input": f"{_SCHEDULER}.process_input_requests",
        "scheduler.run_batch": f"{_SCHEDULER}.run_batch",
        "scheduler.internal_state": f"{_SCHEDULER}.get_internal_state",
        "scheduler.process_result": f"{_SCHEDULER}.process_batch_result",
        "stream.payload": (
            f"{_SRT}.managers.scheduler_components.output_streamer._GenerationStreamAccumulator.to_payload"
        ),
        "tokenizer.batch_output": f"{_SRT}.managers.tokenizer_manager.TokenizerManager._handle_batch_output",
        "tokenizer.wait_one": f"{_SRT}.managers.tokenizer_manager.TokenizerManager._wait_one_response",
        "request_log.finished": f"{_SRT}.utils.request_logger.RequestLogger.log_finished_request",
        "req.reset_for_retract": f"{_SRT}.managers.schedule_batch.Req.reset_for_retract",
        "req.update_finish_state": f"{_SRT}.managers.schedule_batch.Req.update_finish_state",
        "runner.eager_view": f"{_RUNNER}._eager_fb_view",
        "batch.merge": f"{_SRT}.managers.schedule_batch.ScheduleBatch.merge_batch",
        "batch.filter": f"{_SRT}.managers.schedule_batch.ScheduleBatch.filter_batch",
        "runner.forward_decode": f"{_RUNNER}.forward_decode",
        "runner.forward_extend": f"{_RUNNER}.forward_extend",
        "mtp.init_graphs": f"{_FROZEN}.init_cuda_graphs",
        "scheduler.init_model_worker": f"{_SRT}.managers.scheduler.Scheduler.init_model_worker",
        "engine.set_envs": f"{_SRT}.entrypoints.engine._set_envs_and_config",
        "server_args.piecewise": f"{_SRT}.server_args.ServerArgs._handle_piecewise_cuda_graph",
        "piecewise.can_run": (f"{_SRT}.model_executor.piecewise_cuda_graph_runner.PiecewiseCudaGraphRunner.can_run"),
        "server_args.is_sm100": f"{_SRT}.server_args.is_sm100_supported",
        "cpu_config.update_intermediate_size": f"{_SRT}.configs.update_config.update_intermediate_size",
        "gemma4.router": f"{_SRT}.models.gemma4_causal.Gemma4Router.forward",
        "moe.unquantized_native": f"{_SRT}.layers.quantization.unquant.UnquantizedFusedMoEMethod.forward_native",
        "linear.unquantized_apply": f"{_SRT}.layers.quantization.unquant.UnquantizedLinearMethod.apply",
        "logits.softcap": f"{_SRT}.layers.logits_processor.fused_softcap",
        "eagle.build_tree": f"{_SRT}.speculative.eagle_utils.sgl_build_tree_kernel_efficient",
        "eagle.verify_greedy": f"{_SRT}.speculative.eagle_utils.verify_tree_greedy_func",
        "alloc.extend_kernel": f"{_SRT}.mem_cache.allocator.paged.alloc_extend_kernel",
        "alloc.decode_kernel": f"{_SRT}.mem_cache.allocator.paged.alloc_decode_kernel",
        "paged.alloc": f"{_PAGED}.alloc",
        "paged.alloc_extend": f"{_PAGED}.alloc_extend",
        "paged.alloc_decode": f"{_PAGED}.alloc_decode",
        "paged.free": f"{_PAGED}.free",
        "paged.clear": f"{_PAGED}.clear",
        "token.alloc": f"{_TOKEN}.alloc",
        "token.free": f"{_TOKEN}.free",
        "token.clear": f"{_TOKEN}.clear",
        "req_pool.alloc": f"{_SRT}.mem_cache.memory_pool.ReqToTokenPool.alloc",
        "cache.alloc_for_extend": f"{_SRT}.mem_cache.common.alloc_for_extend",
        "cache.alloc_for_decode": f"{_SRT}.mem_cache.common.alloc_for_decode",
        "radix.cache_finished": f"{_SRT}.mem_cache.radix_cache.RadixCache.cache_finished_req",
        "radix.cache_unfinished": f"{_SRT}.mem_cache.radix_cache.RadixCache.cache_unfinished_req",
        "radix.evict": f"{_SRT}.mem_cache.radix_cache.RadixCache.evict",
        "swa_radix.cache_finished": f"{_SRT}.mem_cache.swa_radix_cache.SWARadixCache.cache_finished_req",
        "swa_radix.cache_unfinished": f"{_SRT}.mem_cache.swa_radix_cache.SWARadixCache.cache_unfinished_req",
        "swa_radix.evict": f"{_SRT}.mem_cache.swa_radix_cache.SWARadixCache.evict",
        "batch.evict_swa": f"{_SRT}.managers.schedule_batch.ScheduleBatch._evict_swa",
        "eagle.prepare_for_verify": f"{_SRT}.speculative.eagle_info.EagleVerifyInput.prepare_for_verify",
        "eagle.verify": f"{_SRT}.speculative.eagle_info.EagleVerifyInput.verify",
        "eagle.v2_prepare_for_decode": f"{_SRT}.speculative.eagle_info_v2.EagleDraftInputV2Mixin.prepare_for_decode",
        "eagle_v2.extend_cache_locs": f"{_EAGLE_V2}.assign_extend_cache_locs_func",
        "eagle_v2.top_k_renorm": f"{_EAGLE_V2}.top_k_renorm_prob",
        "eagle_v2.top_p_renorm": f"{_EAGLE_V2}.top_p_renorm_prob",
        "eagle_v2.sample_tree": f"{_EAGLE_V2}.tree_speculative_sampling_target_only",
        "eagle_v2.verify": f"{_SRT}.speculative.eagle_worker_v2.EAGLEWorkerV2.verify",
        "overlap.resolve_lengths": f"{_SRT}.managers.overlap_utils.FutureMap.resolve_seq_lens_cpu",
        "overlap.resolve_extras": f"{_SRT}.managers.overlap_utils.FutureMap._resolve_spec_extras",
        "speculative.supports_v2": f"{_SPEC}.supports_spec_v2",
        "speculative.create_worker": f"{_SPEC}.create_worker",
        "speculative.handle_frozen": f"{_SRT}.arg_groups.speculative_hook._handle_frozen_kv_mtp",
        "speculative.row_headroom": f"{_SRT}.mem_cache.common.get_req_to_token_extra_context_len",
        "speculative.draft_pool": f"{_SRT}.mem_cache.kv_cache_builder.get_draft_kv_pool",
        "scheduler.needs_cpu_seq_lens": f"{_SRT}.managers.scheduler.decide_needs_cpu_seq_lens",
        "scheduler.next_batch": f"{_SCHEDULER}.get_next_batch_to_run",
        "scheduler.on_idle": f"{_SCHEDULER}.on_idle",
        "scheduler.flush_cache": f"{_SCHEDULER}.flush_cache",
        "checker.report_leak": f"{_CHECKER}._report_leak",
        "checker.check_req_pool": f"{_CHECKER}._check_req_pool",
        "checker.check_tree": f"{_CHECKER}._check_tree_cache",
    }
}


def dotted_path(release: str, key: str) -> str:
    """The dotted path behind `key` in SGLang `release`.

    Raises:
        UnsupportedRelease: there is no table for this release, or the table has no such key.
    """
    table = TARGETS.get(release)
    if table is None:
        raise UnsupportedRelease(
            f"no target table for SGLang {release}; this version knows {', '.join(TARGETS)}. "
            f"Install one of those, or unset the GEMMA4_TRIAGE_* and SGLANG_TRTLLM_MHA_DEBUG variables."
        )
    if key not in table:
        raise UnsupportedRelease(f"target {key!r} is not in the table for SGLang {release} (gemma4_runtime/targets.py)")
    return table[key]
