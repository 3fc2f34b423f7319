"""Probes: each watches one kind of state, and proves itself with a self test."""

from __future__ import annotations

from gemma4_runtime.catalog.origins import NO_UPSTREAM, SEED
from gemma4_runtime.patch import Hook, How, Kind, Patch

_AT = "gemma4_runtime.probes"

PROBES: tuple[Patch, ...] = (
    Patch(
        id="page-table",
        kind=Kind.PROBE,
        title="page ids, token slots and write locations lie in the buffer, and belong to the pool, that layers use",
        origin=f"{SEED}; the crash in fmhaSm100fKernel_*SlidingOrChunkedCausal*",
        upstream=NO_UPSTREAM,
        attachments=(
            Hook("trtllm.init", How.AFTER, f"{_AT}.page_table:after_init"),
            Hook("trtllm.init_metadata", How.AFTER, f"{_AT}.page_table:after_metadata"),
            Hook("trtllm.init_graph_metadata", How.AFTER, f"{_AT}.page_table:after_graph_metadata"),
            Hook("trtllm.forward_decode", How.BEFORE, f"{_AT}.page_table:before_dispatch"),
            Hook("trtllm.forward_extend", How.BEFORE, f"{_AT}.page_table:before_dispatch"),
            Hook("attention.init_in_graph", How.BEFORE, f"{_AT}.page_table:before_in_graph"),
            Hook("triton.init", How.AFTER, f"{_AT}.page_table:after_init"),
            Hook("triton.init_metadata", How.AFTER, f"{_AT}.page_table_triton:after_metadata"),
            Hook("triton.init_graph_metadata", How.AFTER, f"{_AT}.page_table_triton:after_graph_metadata"),
            Hook("triton.forward_decode", How.BEFORE, f"{_AT}.page_table_triton:before_decode"),
            Hook("triton.forward_extend", How.BEFORE, f"{_AT}.page_table_triton:before_extend"),
            Hook("flashinfer.init", How.AFTER, f"{_AT}.page_table:after_init"),
            Hook("flashinfer.init_metadata", How.AFTER, f"{_AT}.page_table_flashinfer:after_plan"),
            Hook("flashinfer.init_graph_metadata", How.AFTER, f"{_AT}.page_table_flashinfer:after_graph_plan"),
            Hook("flashinfer.forward_decode", How.BEFORE, f"{_AT}.page_table_flashinfer:before_dispatch"),
            Hook("flashinfer.forward_extend", How.BEFORE, f"{_AT}.page_table_flashinfer:before_dispatch"),
            Hook("scheduler.run_batch", How.AROUND, f"{_AT}.page_table_steps:around_run_batch"),
            Hook("scheduler.process_result", How.AROUND, f"{_AT}.page_table_steps:around_process_batch_result"),
            Hook("req.update_finish_state", How.BEFORE, f"{_AT}.page_table_steps:before_update_finish_state"),
        ),
        self_test=f"{_AT}.page_table:self_test",
    ),
    Patch(
        id="swa-allocator",
        kind=Kind.PROBE,
        title="slots of the SWA allocator: inside their pool, given and freed once, each with an SWA slot of its own",
        origin=SEED,
        upstream=NO_UPSTREAM,
        attachments=(
            Hook("swa.alloc", How.AROUND, f"{_AT}.swa_allocator:around_alloc"),
            Hook("swa.alloc_extend", How.AROUND, f"{_AT}.swa_allocator:around_alloc_extend"),
            Hook("swa.alloc_extend_tail", How.AROUND, f"{_AT}.swa_allocator:around_alloc_extend_tail"),
            Hook("swa.alloc_decode", How.AROUND, f"{_AT}.swa_allocator:around_alloc_decode"),
            Hook("swa.set_mapping", How.BEFORE, f"{_AT}.swa_allocator:before_set_mapping"),
            Hook("swa.free", How.AROUND, f"{_AT}.swa_allocator_free:around_free"),
            Hook("swa.free_swa", How.AROUND, f"{_AT}.swa_allocator_free:around_free_swa"),
            Hook("alloc.free_group_begin", How.AROUND, f"{_AT}.swa_allocator_free:around_free_group_begin"),
            Hook("alloc.free_group_end", How.AROUND, f"{_AT}.swa_allocator_free:around_free_group_end"),
            Hook("swa.restore_state", How.AROUND, f"{_AT}.swa_allocator_state:around_restore_state"),
        ),
        self_test=f"{_AT}.swa_allocator:self_test",
        synchronises=True,
    ),
    Patch(
        id="geometry",
        kind=Kind.PROBE,
        title="at start-up: pools, layers, windows and backends of target and draft fit together",
        origin="SGLang issue 17630; the hybrid backend's pool swap; Gemma4Attention's window",
        upstream=NO_UPSTREAM,
        attachments=(
            Hook("mtp.init_graphs", How.BEFORE, f"{_AT}.geometry:before_draft_graphs"),
            Hook("scheduler.init_model_worker", How.AFTER, f"{_AT}.geometry:after_model_workers"),
        ),
        self_test=f"{_AT}.geometry:self_test",
    ),
    Patch(
        id="leak-ledger",
        kind=Kind.PROBE,
        title="every page is in one place: free, cached or held by a request; names owner and site of any that is not",
        origin="SGLang issues 11970, 7130, 10871; its own checker compares sums and cannot name an owner",
        upstream=NO_UPSTREAM,
        asked_by="leak",
        attachments=(
            *(
                Hook(f"{pool}.{entry}", How.AROUND, f"{_AT}.leak_allocators:around_inner_alloc")
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
                    Hook(f"{pool}.free", How.BEFORE, f"{_AT}.leak_allocators:before_inner_free"),
                    Hook(f"{pool}.clear", How.AFTER, f"{_AT}.leak_allocators:after_inner_clear"),
                )
            ),
            Hook("alloc.restore_state", How.AROUND, f"{_AT}.leak_allocators:around_restore_state"),
            Hook("swa.alloc", How.AROUND, f"{_AT}.leak_allocators:around_swa_alloc"),
            Hook("swa.alloc_extend", How.AROUND, f"{_AT}.leak_allocators:around_swa_alloc"),
            Hook("swa.alloc_extend_tail", How.AROUND, f"{_AT}.leak_allocators:around_swa_alloc_tail"),
            Hook("swa.alloc_decode", How.AROUND, f"{_AT}.leak_allocators:around_swa_alloc"),
            Hook("swa.set_mapping", How.BEFORE, f"{_AT}.leak_allocators:before_set_mapping"),
            Hook("swa.free", How.BEFORE, f"{_AT}.leak_allocators:before_swa_free"),
            Hook("req_pool.alloc", How.AROUND, f"{_AT}.leak_owners:around_req_alloc"),
            Hook("cache.alloc_for_extend", How.AROUND, f"{_AT}.leak_owners:around_alloc_for_extend"),
            Hook("cache.alloc_for_decode", How.AROUND, f"{_AT}.leak_owners:around_alloc_for_decode"),
            Hook("cache.release", How.AROUND, f"{_AT}.leak_owners:around_release"),
            *(
                hook
                for cache in ("radix", "swa_radix")
                for hook in (
                    Hook(f"{cache}.cache_finished", How.AROUND, f"{_AT}.leak_owners:around_cache_finished"),
                    Hook(f"{cache}.cache_unfinished", How.AROUND, f"{_AT}.leak_owners:around_cache_unfinished"),
                    Hook(f"{cache}.evict", How.AROUND, f"{_AT}.leak_owners:around_evict"),
                )
            ),
            Hook("batch.evict_swa", How.AROUND, f"{_AT}.leak_owners:around_evict_swa"),
            Hook("eagle.prepare_for_verify", How.AROUND, f"{_AT}.leak_owners:around_prepare_for_verify"),
            Hook("eagle.verify", How.AROUND, f"{_AT}.leak_owners:around_verify"),
            Hook("eagle.v2_prepare_for_decode", How.AROUND, f"{_AT}.leak_owners:around_spec_v2_decode"),
            Hook("scheduler.run_batch", How.BEFORE, f"{_AT}.leak_audit:before_run_batch"),
            Hook("scheduler.next_batch", How.BEFORE, f"{_AT}.leak_audit:before_next_batch"),
            Hook("scheduler.on_idle", How.BEFORE, f"{_AT}.leak_audit:before_idle"),
            Hook("scheduler.flush_cache", How.BEFORE, f"{_AT}.leak_audit:before_flush"),
            Hook("checker.report_leak", How.AROUND, f"{_AT}.leak_audit:around_report_leak"),
            Hook("checker.check_req_pool", How.AROUND, f"{_AT}.leak_audit:around_check_req_pool"),
            Hook("checker.check_tree", How.AROUND, f"{_AT}.leak_audit:around_check_tree"),
        ),
        self_test=f"{_AT}.leak_audit:self_test",
    ),
    Patch(
        id="batch-shapes",
        kind=Kind.PROBE,
        title="what a batch carries to its next step fits its requests: write locations, speculative state",
        origin="SGLang 29616 (eager out_cache_loc), SGLang 26859 (a round in which all requests finish)",
        upstream=NO_UPSTREAM,
        attachments=(
            Hook("runner.eager_view", How.BEFORE, f"{_AT}.batch_shapes:before_eager_view"),
            Hook("batch.merge", How.BEFORE, f"{_AT}.batch_shapes:before_merge"),
            Hook("batch.filter", How.BEFORE, f"{_AT}.batch_shapes:before_filter"),
        ),
        self_test=f"{_AT}.batch_shapes:self_test",
    ),
    Patch(
        id="probe-cost",
        kind=Kind.PROBE,
        title="the time that probes take of the scheduler's thread, per kind of step, in /server_info",
        origin="this project: a cost that is claimed has to be measurable where the probes run",
        upstream=NO_UPSTREAM,
        asked_by="cost",
        # Last, and so outermost: a step has its kind before any other probe meets it.
        attachments=(
            Hook("scheduler.run_batch", How.BEFORE, f"{_AT}.probe_cost:before_run_batch"),
            Hook("scheduler.on_idle", How.BEFORE, f"{_AT}.probe_cost:before_idle"),
            Hook("scheduler.internal_state", How.AFTER, f"{_AT}.probe_cost:after_internal_state"),
        ),
        self_test=f"{_AT}.probe_cost:self_test",
    ),
)
