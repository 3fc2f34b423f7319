"""The catalog: the explicit tuple of every patch. Importing it needs neither torch nor sglang."""

from __future__ import annotations

from gemma4_runtime.patch import Bind, Edit, Hook, How, Kind, Patch

_HOST = "gemma4_runtime.host"
_FAULTS_AT = "gemma4_runtime.faults"
_FIXES_AT = "gemma4_runtime.fixes"
_PROBES_AT = "gemma4_runtime.probes"
_SEED = "SGLang pull requests for Gemma-4 on trtllm_mha with MTP (feature rows F3, F4, F6)"
_NO_UPSTREAM = "not upstream up to 0.5.23"

_HOST_LEAVES = (
    Patch(
        id="host-processes",
        kind=Kind.HOST_LEAF,
        title="fork worker processes instead of spawning them",
        origin="start-up time of the host engine",
        upstream="not needed: CUDA forbids fork",
        attachments=(Hook("engine.set_envs", How.AFTER, f"{_HOST}.processes:fork_workers"),),
    ),
    Patch(
        id="host-sm100-check",
        kind=Kind.HOST_LEAF,
        title="pass the Blackwell check in server arguments",
        origin="ValueError: trtllm_mha needs Blackwell",
        upstream="not needed on a GPU",
        attachments=(Bind("server_args.is_sm100", f"{_HOST}.device_checks:is_sm100_supported"),),
    ),
    Patch(
        id="host-cpu-config",
        kind=Kind.HOST_LEAF,
        title="accept a dense model in the CPU padding of MoE sizes",
        origin="TypeError: None % int in update_intermediate_size",
        upstream=_NO_UPSTREAM,
        attachments=(
            Hook("cpu_config.update_intermediate_size", How.AROUND, f"{_HOST}.cpu_config:update_intermediate_size"),
        ),
    ),
    Patch(
        id="host-softcap",
        kind=Kind.HOST_LEAF,
        title="final logit softcapping in torch",
        origin="the Triton interpreter has no libdevice.tanh",
        upstream="not needed on a GPU",
        attachments=(Bind("logits.softcap", f"{_HOST}.softcap:softcap_inplace"),),
    ),
    Patch(
        id="host-draft-tree",
        kind=Kind.HOST_LEAF,
        title="draft tree construction and greedy verification in torch",
        origin="NameError: sgl_build_tree_kernel_efficient; verify_tree_greedy_func is a no-op on a CPU",
        upstream="not needed on a GPU",
        attachments=(
            Bind("eagle.build_tree", f"{_HOST}.speculative_tree:build_tree"),
            Hook("eagle.verify_greedy", How.REPLACE, f"{_HOST}.speculative_tree:verify_tree_greedy"),
        ),
    ),
    Patch(
        id="host-alloc-kernels",
        kind=Kind.HOST_LEAF,
        title="paged allocation kernels in torch",
        origin="the Triton interpreter takes half of a step for them",
        upstream="not needed on a GPU",
        attachments=(
            Bind("alloc.extend_kernel", f"{_HOST}.alloc_kernels:alloc_extend_kernel"),
            Bind("alloc.decode_kernel", f"{_HOST}.alloc_kernels:alloc_decode_kernel"),
        ),
    ),
    Patch(
        id="host-flashinfer-names",
        kind=Kind.HOST_LEAF,
        title="names that the flashinfer backend module imports only with CUDA",
        origin="NameError at the construction of trtllm_mha's base class",
        upstream="not needed on a GPU",
        attachments=(
            Bind("flashinfer.decode_wrapper", f"{_HOST}.flashinfer_names:HeldWrapper"),
            Bind("flashinfer.prefill_paged_wrapper", f"{_HOST}.flashinfer_names:HeldWrapper"),
            Bind("flashinfer.prefill_ragged_wrapper", f"{_HOST}.flashinfer_names:HeldWrapper"),
            Bind("flashinfer.fast_decode_plan", f"{_HOST}.flashinfer_names:fast_decode_plan"),
        ),
    ),
    Patch(
        id="host-paged-attention",
        kind=Kind.HOST_LEAF,
        title="fp32 paged attention with a device model, in place of trtllm-gen kernels",
        origin="NameError: flashinfer; device models sm100 and sm90",
        upstream="not needed on a GPU",
        attachments=(
            Bind("trtllm.flashinfer", f"{_HOST}.paged_attention:flashinfer"),
            Hook("swa.pool_init", How.AFTER, f"{_HOST}.arena:after_pool_init"),
        ),
    ),
    Patch(
        id="host-eager-inputs",
        kind=Kind.HOST_LEAF,
        title="copy eager inputs through the input registry, as on CUDA with graphs off",
        origin="ModelRunner takes _eager_fb_view only for device cuda, which hides the stale out_cache_loc crash",
        upstream="not needed on a GPU",
        attachments=(
            Edit(
                "runner.forward_decode",
                'if not self.server_args.enable_pdmux and self.device == "cuda":',
                "if not self.server_args.enable_pdmux:",
            ),
            Edit(
                "runner.forward_extend",
                'if not self.server_args.enable_pdmux and self.device == "cuda":',
                "if not self.server_args.enable_pdmux:",
            ),
        ),
    ),
)

_FAULTS = (
    Patch(
        id="swa-state-stale",
        kind=Kind.FAULT,
        title="draft backend resolves its SWA state from its own, non-SWA pool (the seed bug)",
        origin=f"{_SEED}; SGLang before TRTLLMHAAttnBackend._resolve_swa_kv_pool",
        upstream="resolved from the allocator in 0.5.13",
        attachments=(
            Hook("trtllm.resolve_swa_pool", How.REPLACE, f"{_FAULTS_AT}.swa_state_stale:resolve_from_active_pool"),
        ),
    ),
    Patch(
        id="swa-alloc-oob",
        kind=Kind.FAULT,
        title="SWA allocator hands out an index beyond its pool, once",
        origin=_SEED,
        upstream="an injected fault; no release has it",
        attachments=(
            Hook("swa.alloc", How.AFTER, f"{_FAULTS_AT}.swa_alloc_oob:spoil"),
            Hook("swa.alloc_decode", How.AFTER, f"{_FAULTS_AT}.swa_alloc_oob:spoil"),
        ),
    ),
    Patch(
        id="page-past-the-end",
        kind=Kind.FAULT,
        title="a live entry of the sliding-window table names the first page past the buffer's end",
        origin="SGLang 9123, an injected form of it",
        upstream="an injected fault; no release has it",
        attachments=(Hook("trtllm.init_metadata", How.AFTER, f"{_FAULTS_AT}.page_past_the_end:point_past_the_end"),),
    ),
    Patch(
        id="negative-page",
        kind=Kind.FAULT,
        title="a live entry of the full table holds -1",
        origin="TensorRT-LLM 16280, an injected form of it",
        upstream="an injected fault; no release has it",
        attachments=(Hook("trtllm.init_metadata", How.AFTER, f"{_FAULTS_AT}.negative_page:leave_unassigned"),),
    ),
    Patch(
        id="stale-mapping",
        kind=Kind.FAULT,
        title="free_swa gives SWA pages back and leaves the full-to-SWA mapping as it was",
        origin="SGLang 25805",
        upstream="mapping cleared per token in 0.5.13, per page in 0.5.14",
        attachments=(Hook("swa.free_swa", How.AROUND, f"{_FAULTS_AT}.stale_mapping:keep_mapping"),),
    ),
    Patch(
        id="free-of-page-zero",
        kind=Kind.FAULT,
        title="a finished request also frees an unset entry of its row: slot 0",
        origin="SGLang 38519, an injected form of it",
        upstream="an injected fault; no release has it",
        attachments=(Hook("cache.release", How.BEFORE, f"{_FAULTS_AT}.free_of_page_zero:free_unset_entry"),),
    ),
    Patch(
        id="hybrid-pool-unswapped",
        kind=Kind.FAULT,
        title="draft on a hybrid backend whose decode child keeps the dummy pool",
        origin="SGLang 26966 swaps one backend's state; a hybrid has two more",
        upstream="open up to 0.5.23",
        attachments=(Hook("mtp.init_draft_backend", How.AFTER, f"{_FAULTS_AT}.hybrid_pool_unswapped:wrap_in_hybrid"),),
    ),
    Patch(
        id="full-draft-through-swa-map",
        kind=Kind.FAULT,
        title="the draft's full layers read the full buffer with translated page ids",
        origin="SGLang 25103",
        upstream="fixed before 0.5.13",
        attachments=(
            Hook("trtllm.init", How.AFTER, f"{_FAULTS_AT}.full_draft_through_swa_map:remember_draft"),
            Hook("trtllm.layer_table", How.AFTER, f"{_FAULTS_AT}.full_draft_through_swa_map:take_swa_table"),
        ),
    ),
    Patch(
        id="one-untranslated-row",
        kind=Kind.FAULT,
        title="one row of the sliding-window table skips the full-to-SWA translation",
        origin="SGLang 24402, an injected form of it",
        upstream="an injected fault; no release has it",
        attachments=(Hook("trtllm.init_metadata", How.AFTER, f"{_FAULTS_AT}.one_untranslated_row:keep_one_row"),),
    ),
    Patch(
        id="page-over-count",
        kind=Kind.FAULT,
        title="the prefix cache takes one evicted SWA page of a finished request for present",
        origin="SGLang 27789, an injected form of it",
        upstream="an injected fault; no release has it",
        attachments=(Hook("swa_radix.insert", How.AROUND, f"{_FAULTS_AT}.page_over_count:understate_evicted"),),
    ),
    Patch(
        id="deferred-free-after-replacement",
        kind=Kind.FAULT,
        title="the SWA page of slots in a free group is replaced before the group is flushed",
        origin="SGLang 36081",
        upstream="recovery inside a free group exists from 0.5.18 on",
        attachments=(
            Hook(
                "alloc.free_group_end", How.AROUND, f"{_FAULTS_AT}.deferred_free_after_replacement:replace_before_flush"
            ),
        ),
    ),
    Patch(
        id="draft-pool-too-small",
        kind=Kind.FAULT,
        title="the full pool that the draft reads ends before the allocator's",
        origin="SGLang 17630",
        upstream="fixed before 0.5.13",
        attachments=(Hook("mtp.bind_context", How.AFTER, f"{_FAULTS_AT}.draft_pool_too_small:shorten_pool"),),
    ),
    Patch(
        id="unmergeable-spec-info",
        kind=Kind.FAULT,
        title="a round in which all requests finish leaves the verify input on the batch",
        origin="SGLang 26859",
        upstream="fixed before 0.5.13",
        attachments=(
            Hook("mtp.preprocess_idle", How.REPLACE, f"{_FAULTS_AT}.unmergeable_spec_info:leave_verify_input"),
        ),
    ),
    Patch(
        id="double-bookkeeping",
        kind=Kind.FAULT,
        title="requests that V1 verify finished are taken for released, as under spec V2",
        origin="the symptom of SGLang 7130; a V1 worker wrapped for spec V2",
        upstream="no release combines V1 verify with the V2 scheduler",
        attachments=(Hook("results.process_decode", How.AROUND, f"{_FAULTS_AT}.double_bookkeeping:skip_finished"),),
    ),
    Patch(
        id="alloc-on-one-pool",
        kind=Kind.FAULT,
        title="alloc_decode succeeds in the full pool and fails in the SWA pool, once",
        origin="SGLang 7909 brought paged pool pairs",
        upstream="open in 0.5.13",
        attachments=(Hook("swa.alloc_decode", How.AROUND, f"{_FAULTS_AT}.alloc_on_one_pool:fail_swa_side"),),
    ),
)

_FIXES = (
    Patch(
        id="swa-state-swap",
        kind=Kind.FIX,
        title="draft SWA state follows the KV pool on every leaf, eager and in graphs; hybrid backend unwrapped",
        origin=_SEED,
        upstream="SWA state resolved from the allocator in 0.5.13; the hybrid crash is open up to 0.5.23",
        default=True,
        attachments=(
            Hook("mtp.target_view", How.AROUND, f"{_FIXES_AT}.swa_state_swap:around_view"),
            Hook("mtp.pool_view", How.AROUND, f"{_FIXES_AT}.swa_state_swap:around_view"),
            Hook("mtp.graph_runner_init", How.AROUND, f"{_FIXES_AT}.swa_state_swap:around_graph_runner_init"),
            Hook("mtp.init_draft_backend", How.AFTER, f"{_FIXES_AT}.swa_state_swap:unwrap_hybrid"),
        ),
    ),
    Patch(
        id="eager-out-cache-loc",
        kind=Kind.FIX,
        title="a draft batch carries no out_cache_loc into eager input copies",
        origin='"size of tensor a (29) must match the size of tensor b (30)" with CUDA graphs off',
        upstream="fixed in 0.5.15",
        default=True,
        attachments=(Hook("mtp.expand_for_topk", How.AFTER, f"{_FIXES_AT}.eager_out_cache_loc:drop_out_cache_loc"),),
    ),
    Patch(
        id="swa-window-width",
        kind=Kind.FIX,
        title="sliding layers see W keys as in transformers, not W+1 (changes shipped outputs past the window)",
        origin="Gemma4Attention passes sliding_window where kernels expect sliding_window - 1",
        upstream="fixed in 0.5.23",
        attachments=(Hook("gemma4.attention_init", How.AFTER, f"{_FIXES_AT}.swa_window_width:narrow_window"),),
    ),
)

_PROBES = (
    Patch(
        id="page-table",
        kind=Kind.PROBE,
        title="page ids, token slots and write locations lie in the buffer, and belong to the pool, that layers use",
        origin=f"{_SEED}; the crash in fmhaSm100fKernel_*SlidingOrChunkedCausal*",
        upstream=_NO_UPSTREAM,
        attachments=(
            Hook("trtllm.init", How.AFTER, f"{_PROBES_AT}.page_table:after_init"),
            Hook("trtllm.init_metadata", How.AFTER, f"{_PROBES_AT}.page_table:after_metadata"),
            Hook("trtllm.init_graph_metadata", How.AFTER, f"{_PROBES_AT}.page_table:after_graph_metadata"),
            Hook("trtllm.forward_decode", How.BEFORE, f"{_PROBES_AT}.page_table:before_dispatch"),
            Hook("trtllm.forward_extend", How.BEFORE, f"{_PROBES_AT}.page_table:before_dispatch"),
            Hook("attention.init_in_graph", How.BEFORE, f"{_PROBES_AT}.page_table:before_in_graph"),
            Hook("triton.init", How.AFTER, f"{_PROBES_AT}.page_table:after_init"),
            Hook("triton.init_metadata", How.AFTER, f"{_PROBES_AT}.page_table_triton:after_metadata"),
            Hook("triton.init_graph_metadata", How.AFTER, f"{_PROBES_AT}.page_table_triton:after_graph_metadata"),
            Hook("triton.forward_decode", How.BEFORE, f"{_PROBES_AT}.page_table_triton:before_decode"),
            Hook("triton.forward_extend", How.BEFORE, f"{_PROBES_AT}.page_table_triton:before_extend"),
            Hook("flashinfer.init", How.AFTER, f"{_PROBES_AT}.page_table:after_init"),
            Hook("flashinfer.init_metadata", How.AFTER, f"{_PROBES_AT}.page_table_flashinfer:after_plan"),
            Hook("flashinfer.init_graph_metadata", How.AFTER, f"{_PROBES_AT}.page_table_flashinfer:after_graph_plan"),
            Hook("flashinfer.forward_decode", How.BEFORE, f"{_PROBES_AT}.page_table_flashinfer:before_dispatch"),
            Hook("flashinfer.forward_extend", How.BEFORE, f"{_PROBES_AT}.page_table_flashinfer:before_dispatch"),
            Hook("scheduler.run_batch", How.AROUND, f"{_PROBES_AT}.page_table_steps:around_run_batch"),
            Hook("scheduler.process_result", How.AROUND, f"{_PROBES_AT}.page_table_steps:around_process_batch_result"),
            Hook("req.update_finish_state", How.BEFORE, f"{_PROBES_AT}.page_table_steps:before_update_finish_state"),
        ),
        self_test=f"{_PROBES_AT}.page_table:self_test",
    ),
    Patch(
        id="swa-allocator",
        kind=Kind.PROBE,
        title="slots of the SWA allocator: inside their pool, given and freed once, each with an SWA slot of its own",
        origin=_SEED,
        upstream=_NO_UPSTREAM,
        attachments=(
            Hook("swa.alloc", How.AROUND, f"{_PROBES_AT}.swa_allocator:around_alloc"),
            Hook("swa.alloc_extend", How.AROUND, f"{_PROBES_AT}.swa_allocator:around_alloc_extend"),
            Hook("swa.alloc_extend_tail", How.AROUND, f"{_PROBES_AT}.swa_allocator:around_alloc_extend_tail"),
            Hook("swa.alloc_decode", How.AROUND, f"{_PROBES_AT}.swa_allocator:around_alloc_decode"),
            Hook("swa.set_mapping", How.BEFORE, f"{_PROBES_AT}.swa_allocator:before_set_mapping"),
            Hook("swa.free", How.AROUND, f"{_PROBES_AT}.swa_allocator_free:around_free"),
            Hook("swa.free_swa", How.AROUND, f"{_PROBES_AT}.swa_allocator_free:around_free_swa"),
            Hook("alloc.free_group_begin", How.AROUND, f"{_PROBES_AT}.swa_allocator_free:around_free_group_begin"),
            Hook("alloc.free_group_end", How.AROUND, f"{_PROBES_AT}.swa_allocator_free:around_free_group_end"),
            Hook("swa.restore_state", How.AROUND, f"{_PROBES_AT}.swa_allocator_state:around_restore_state"),
        ),
        self_test=f"{_PROBES_AT}.swa_allocator:self_test",
        synchronises=True,
    ),
    Patch(
        id="geometry",
        kind=Kind.PROBE,
        title="at start-up: pools, layers, windows and backends of target and draft fit together",
        origin="SGLang issue 17630; the hybrid backend's pool swap; Gemma4Attention's window",
        upstream=_NO_UPSTREAM,
        attachments=(
            Hook("mtp.init_graphs", How.BEFORE, f"{_PROBES_AT}.geometry:before_draft_graphs"),
            Hook("scheduler.init_model_worker", How.AFTER, f"{_PROBES_AT}.geometry:after_model_workers"),
        ),
        self_test=f"{_PROBES_AT}.geometry:self_test",
    ),
    Patch(
        id="leak-ledger",
        kind=Kind.PROBE,
        title="every page is in one place: free, cached or held by a request; names owner and site of any that is not",
        origin="SGLang issues 11970, 7130, 10871; its own checker compares sums and cannot name an owner",
        upstream=_NO_UPSTREAM,
        asked_by="leak",
        attachments=(
            *(
                Hook(f"{pool}.{entry}", How.AROUND, f"{_PROBES_AT}.leak_allocators:around_inner_alloc")
                for pool, entry in (
                    ("paged", "alloc"),
                    ("paged", "alloc_extend"),
                    ("paged", "alloc_decode"),
                    ("token", "alloc"),
                )
            ),
            *(
                hook
                for pool in ("paged", "token")
                for hook in (
                    Hook(f"{pool}.free", How.BEFORE, f"{_PROBES_AT}.leak_allocators:before_inner_free"),
                    Hook(f"{pool}.clear", How.AFTER, f"{_PROBES_AT}.leak_allocators:after_inner_clear"),
                )
            ),
            Hook("swa.alloc", How.AROUND, f"{_PROBES_AT}.leak_allocators:around_swa_alloc"),
            Hook("swa.alloc_extend", How.AROUND, f"{_PROBES_AT}.leak_allocators:around_swa_alloc"),
            Hook("swa.alloc_extend_tail", How.AROUND, f"{_PROBES_AT}.leak_allocators:around_swa_alloc_tail"),
            Hook("swa.alloc_decode", How.AROUND, f"{_PROBES_AT}.leak_allocators:around_swa_alloc"),
            Hook("swa.set_mapping", How.BEFORE, f"{_PROBES_AT}.leak_allocators:before_set_mapping"),
            Hook("swa.free", How.BEFORE, f"{_PROBES_AT}.leak_allocators:before_swa_free"),
            Hook("req_pool.alloc", How.AROUND, f"{_PROBES_AT}.leak_owners:around_req_alloc"),
            Hook("cache.alloc_for_extend", How.AROUND, f"{_PROBES_AT}.leak_owners:around_alloc_for_extend"),
            Hook("cache.alloc_for_decode", How.AROUND, f"{_PROBES_AT}.leak_owners:around_alloc_for_decode"),
            Hook("cache.release", How.AROUND, f"{_PROBES_AT}.leak_owners:around_release"),
            *(
                hook
                for cache in ("radix", "swa_radix")
                for hook in (
                    Hook(f"{cache}.cache_finished", How.AROUND, f"{_PROBES_AT}.leak_owners:around_cache_finished"),
                    Hook(f"{cache}.cache_unfinished", How.AROUND, f"{_PROBES_AT}.leak_owners:around_cache_unfinished"),
                    Hook(f"{cache}.evict", How.AROUND, f"{_PROBES_AT}.leak_owners:around_evict"),
                )
            ),
            Hook("batch.evict_swa", How.AROUND, f"{_PROBES_AT}.leak_owners:around_evict_swa"),
            Hook("eagle.prepare_for_verify", How.AROUND, f"{_PROBES_AT}.leak_owners:around_prepare_for_verify"),
            Hook("eagle.verify", How.AROUND, f"{_PROBES_AT}.leak_owners:around_verify"),
            Hook("eagle.v2_prepare_for_decode", How.AROUND, f"{_PROBES_AT}.leak_owners:around_spec_v2_decode"),
            Hook("scheduler.run_batch", How.BEFORE, f"{_PROBES_AT}.leak_audit:before_run_batch"),
            Hook("scheduler.next_batch", How.BEFORE, f"{_PROBES_AT}.leak_audit:before_next_batch"),
            Hook("scheduler.on_idle", How.BEFORE, f"{_PROBES_AT}.leak_audit:before_idle"),
            Hook("scheduler.flush_cache", How.BEFORE, f"{_PROBES_AT}.leak_audit:before_flush"),
            Hook("checker.report_leak", How.AROUND, f"{_PROBES_AT}.leak_audit:around_report_leak"),
            Hook("checker.check_req_pool", How.AROUND, f"{_PROBES_AT}.leak_audit:around_check_req_pool"),
            Hook("checker.check_tree", How.AROUND, f"{_PROBES_AT}.leak_audit:around_check_tree"),
        ),
        self_test=f"{_PROBES_AT}.leak_audit:self_test",
    ),
    Patch(
        id="batch-shapes",
        kind=Kind.PROBE,
        title="what a batch carries to its next step fits its requests: write locations, speculative state",
        origin="SGLang 29616 (eager out_cache_loc), SGLang 26859 (a round in which all requests finish)",
        upstream=_NO_UPSTREAM,
        attachments=(
            Hook("runner.eager_view", How.BEFORE, f"{_PROBES_AT}.batch_shapes:before_eager_view"),
            Hook("batch.merge", How.BEFORE, f"{_PROBES_AT}.batch_shapes:before_merge"),
            Hook("batch.filter", How.BEFORE, f"{_PROBES_AT}.batch_shapes:before_filter"),
        ),
        self_test=f"{_PROBES_AT}.batch_shapes:self_test",
    ),
    Patch(
        id="probe-cost",
        kind=Kind.PROBE,
        title="the time that probes take of the scheduler's thread, per kind of step, in /server_info",
        origin="this project: a cost that is claimed has to be measurable where the probes run",
        upstream=_NO_UPSTREAM,
        asked_by="cost",
        # Last, and so outermost: a step has its kind before any other probe meets it.
        attachments=(
            Hook("scheduler.run_batch", How.BEFORE, f"{_PROBES_AT}.probe_cost:before_run_batch"),
            Hook("scheduler.on_idle", How.BEFORE, f"{_PROBES_AT}.probe_cost:before_idle"),
            Hook("scheduler.internal_state", How.AFTER, f"{_PROBES_AT}.probe_cost:after_internal_state"),
        ),
        self_test=f"{_PROBES_AT}.probe_cost:self_test",
    ),
)

CATALOG: tuple[Patch, ...] = (*_HOST_LEAVES, *_FAULTS, *_FIXES, *_PROBES)
