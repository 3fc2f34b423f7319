"""What differs from the base table in a later release: the new dotted path, or None where nothing is at that key.

Filled from `make targets RELEASE=x`, which also resolves the result in the unpacked release. A path here says
where a function of the same name and a similar body is; whether a patch does its work on it is the patch's to say.
A key that the base table does not have is of a patch for later releases.
Behind a None stands what took the place of the function, where something did: a patch has to be written anew for that.
"""

from __future__ import annotations

from collections.abc import Mapping

_SRT = "sglang.srt"
_DRAFT_WORKER = f"{_SRT}.speculative.frozen_kv_mtp_worker_v2.FrozenKVMTPDraftWorker"

_SINCE_0_5_17: dict[str, str | None] = {
    "runner.swa_layers": None,  # model_executor.model_runner_components.layer_setup makes the lists
    "runner.profile_bytes": None,  # mem_cache.kv_cache_configurator.KVCacheConfigurator, another body
    "swa.restore_state": None,
    "alloc.restore_state": None,
    "results.apply_grammar": None,
    "mtp.bind_context": f"{_DRAFT_WORKER}._bind_kv_context",
    "mtp.preprocess_idle": None,
    "mtp.init_draft_backend": f"{_DRAFT_WORKER}._init_draft_attn_backend",
    "mtp.set_positions": f"{_DRAFT_WORKER}._set_positions",
    "mtp.draft": f"{_DRAFT_WORKER}.draft",
    "mtp.verify": None,  # speculative.eagle_worker_v2.EAGLEWorkerV2.verify
    "mtp.expand_for_topk": f"{_DRAFT_WORKER}._expand_for_topk_draft",
    "mtp.init_graphs": f"{_DRAFT_WORKER}.init_cuda_graphs",
    "runner.eager_view": None,  # model_executor.runner.eager_runner.EagerRunner.load_batch
    "runner.forward_decode": None,  # EagerRunner._execute_decode
    "runner.forward_extend": None,  # EagerRunner._execute_extend
    "server_args.piecewise": None,
    "piecewise.can_run": None,
    "piecewise.replay": None,
    "piecewise.install": None,
    "cache.alloc_for_extend": f"{_SRT}.mem_cache.allocation.alloc_for_extend",
    # In 0.5.23 another body, which chooses by device, with the same arguments and results.
    "cache.alloc_for_decode": f"{_SRT}.mem_cache.allocation.alloc_for_decode",
    "eagle.prepare_for_verify": None,  # speculative.eagle_utils.eagle_prepare_for_verify
    "eagle.verify": None,  # speculative.eagle_utils.eagle_sample
    "eagle.v2_prepare_for_decode": None,  # speculative.eagle_utils.eagle_prepare_for_decode
    "eagle_v2.extend_cache_locs": "sglang.kernels.ops.speculative.cache_locs.assign_extend_cache_locs_func",
    "eagle_v2.top_k_renorm": None,
    "eagle_v2.top_p_renorm": None,
    "eagle_v2.sample_tree": None,
    "speculative.supports_v2": None,
    "speculative.row_headroom": f"{_SRT}.mem_cache.allocation_sizing.get_req_to_token_extra_context_len",
}

_SINCE_0_5_23: dict[str, str | None] = {
    "server_args.last_check": f"{_SRT}.arg_groups.validation_hook.check_server_args",
    # PlatformContext asks the probe by its name in utils.common at each question.
    "server_args.is_sm100": f"{_SRT}.utils.common.is_sm100_supported",
    "mtp.forward": f"{_SRT}.speculative.frozen_kv_mtp_worker_v2.FrozenKVMTPWorkerV2.forward_batch_generation",
    "trtllm.run_decode": f"{_SRT}.layers.attention.trtllm_mha_backend.TRTLLMHAAttnBackend._run_fixed_q_len_decode",
    "trtllm.counter_buffer": (
        f"{_SRT}.layers.attention.trtllm_mha_backend.make_persistent_multi_ctas_kv_counter_buffer"
    ),
    **{
        f"swa.{entry}": f"{_SRT}.mem_cache.allocator.swa.SWATokenToKVPoolAllocator.{entry}"
        for entry in ("free_segment", "free_full", "free_full_segment", "free_swa_segment", "free_group_end")
    },
    "eager.load_batch": f"{_SRT}.model_executor.runner.eager_runner.EagerRunner.load_batch",
    # The name that the workers' common verification has imported for itself.
    "eagle.sample": f"{_SRT}.speculative.eagle_worker_common.eagle_sample",
    "eagle.prepare_for_decode": f"{_SRT}.speculative.eagle_utils.eagle_prepare_for_decode",
    # Two modules import the name for themselves.
    "eagle_v2.tree_mask_mode": f"{_SRT}.speculative.eagle_worker_v2.default_tree_mask_mode",
    "attention.tree_mask_mode": f"{_SRT}.layers.attention.verify_mask.default_tree_mask_mode",
    # RadixCache.insert is more alike in text; this one does the work of a hybrid model's cache.
    "swa_radix.insert": f"{_SRT}.mem_cache.unified_radix_cache.UnifiedRadixCache.insert",
    "multimodal.chunked_embedding": f"{_SRT}.managers.mm_schedule._get_chunked_prefill_embedding",
    "eagle.build_tree": None,
    "radix.cache_finished": None,  # BasePrefixCache.on_release
    "radix.cache_unfinished": None,  # RadixCache.checkpoint
    "radix.checkpoint": f"{_SRT}.mem_cache.radix_cache.RadixCache.checkpoint",
    "swa_radix.cache_finished": None,  # UnifiedRadixCache.on_release
    "swa_radix.cache_unfinished": None,  # UnifiedRadixCache.checkpoint
    "swa_radix.checkpoint": f"{_SRT}.mem_cache.unified_radix_cache.UnifiedRadixCache.checkpoint",
    "swa_radix.evict": f"{_SRT}.mem_cache.unified_radix_cache.UnifiedRadixCache.evict",
    "swa_radix.evict_for_alloc": f"{_SRT}.mem_cache.unified_radix_cache.UnifiedRadixCache.evict_for_alloc",
    "paged.free_page_ids": f"{_SRT}.mem_cache.allocator.paged.PagedTokenToKVPoolAllocator.free_page_ids",
    "paged.release_page_ids": f"{_SRT}.mem_cache.allocator.paged.PagedTokenToKVPoolAllocator._release_page_ids",
    "speculative.row_headroom": None,  # mem_cache.allocation_sizing has the name, another body
    "speculative.draft_pool": None,
}

DELTAS: Mapping[str, Mapping[str, str | None]] = {
    "0.5.17": _SINCE_0_5_17,
    "0.5.23": {**_SINCE_0_5_17, **_SINCE_0_5_23},
}
