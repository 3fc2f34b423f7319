"""Probes: each watches one kind of state, and proves itself with a self test."""

from __future__ import annotations

from gemma4_runtime.catalog.shared_hooks import KNOWN_POOLS, PAGE_HOOKS
from gemma4_runtime.patch import NO_UPSTREAM, SEED, About, Hook, How, Kind, Patch
from gemma4_runtime.releases import BASE

_AT = "gemma4_runtime.probes"

PROBES: tuple[Patch, ...] = (
    Patch(
        id="aged-pools",
        kind=Kind.PROBE,
        title="both KV pools hand out their ids in shuffled orders, so that equal ids hide no wrong translation",
        origin="this project: in a young server both pools hand out equal ids, and a wrong translation looks right",
        upstream=NO_UPSTREAM,
        until="0.5.23",
        asked_by="age",
        # First, and so innermost: every other probe sees the lists as they are afterwards.
        about=About(
            why="As long as full and sliding-window pools hand out equal ids, a page table that was not translated, or "
            "twice, reads the right pages. The fault shows when the ids have parted, an hour later.",
            eligibility="SWATokenToKVPoolAllocator, at its start and after each flush of the cache.",
            fallback="A server with one pool for all layers translates nothing, and nothing is shuffled. Where SGLang "
            "sorts its lists of free pages, the orders last until the first sort.",
            proof=("tests/unit/test_aged_pools.py", "tests/engine/test_aged_pools_live.py"),
        ),
        attachments=(Hook("swa.clear", How.AFTER, f"{_AT}.aged_pools:after_clear"),),
        self_test=f"{_AT}.aged_pools:self_test",
    ),
    Patch(
        id="page-table",
        kind=Kind.PROBE,
        title="page ids, token slots and write locations lie in the buffer, and belong to the pool, that layers use",
        origin=f"{SEED}; the crash in fmhaSm100fKernel_*SlidingOrChunkedCausal*",
        upstream=NO_UPSTREAM,
        until="0.5.23",
        about=About(
            why="A page id outside the buffer is an illegal access on Blackwell and read in silence on Hopper. This "
            "checks what attention is about to follow, before it does, against the buffer that the layer will use.",
            eligibility="trtllm_mha, Triton and FlashInfer attention: eager builds, and the static arrays of CUDA "
            "graphs before each replay. Multi-step EAGLE drafts and cross attention are not covered.",
            fallback="Another attention backend is served unchecked. Ids of another pool that are in range are "
            "reported and not neutralised.",
            proof=(
                "tests/engine/test_repro_corpus.py",
                "tests/engine/test_contain_live.py",
                "tests/engine/test_page_table_triton_live.py",
                "tests/unit/test_probe_page_table_trtllm_contain.py",
                "tests/gpu/test_graph_guards.py",
                "tests/gpu/test_flashinfer_plans.py",
                "kernels/bench/rows/page_guard_h200_2026-11-21.json",
                "docs/bench/probes_h200_2026-11-21_e4b_mtp_on.json",
            ),
            switches=("GEMMA4_TRIAGE_INCLUDE",),
        ),
        attachments=(KNOWN_POOLS, *PAGE_HOOKS),
        self_test=f"{_AT}.page_table:self_test",
    ),
    Patch(
        id="swa-allocator",
        kind=Kind.PROBE,
        title="slots of the SWA allocator: inside their pool, given and freed once, each with an SWA slot of its own",
        origin=SEED,
        upstream=NO_UPSTREAM,
        until="0.5.23",
        about=About(
            why="A slot beyond its pool, given twice or without an SWA slot of its own becomes a wrong page a step "
            "later. This sees it at the allocator's call, whatever backend reads it.",
            eligibility="Every entry point of SWATokenToKVPoolAllocator, so servers with two KV pools. It waits for "
            "the device, so contain leaves it out unless it is named.",
            fallback="A server with one pool for all layers has no such allocator, and nothing is checked.",
            proof=(
                "tests/engine/test_probes_live.py::test_a_slot_beyond_the_pool_is_trapped_where_it_is_handed_out",
                "tests/engine/test_repro_corpus.py",
                "tests/unit/test_probe_swa_allocator_histories.py",
            ),
        ),
        attachments=(
            KNOWN_POOLS,
            Hook("swa.alloc", How.AROUND, f"{_AT}.swa_allocator:around_alloc"),
            Hook("swa.alloc_extend", How.AROUND, f"{_AT}.swa_allocator:around_alloc_extend"),
            Hook("swa.alloc_extend_tail", How.AROUND, f"{_AT}.swa_allocator:around_alloc_extend_tail"),
            Hook("swa.alloc_decode", How.AROUND, f"{_AT}.swa_allocator:around_alloc_decode"),
            *(
                Hook(f"paged.{entry}", How.AFTER, f"{_AT}.swa_allocator_state:after_inner_alloc")
                for entry in ("alloc", "alloc_extend", "alloc_decode")
            ),
            Hook("token.alloc", How.AFTER, f"{_AT}.swa_allocator_state:after_inner_alloc"),
            Hook("swa.set_mapping", How.BEFORE, f"{_AT}.swa_allocator:before_set_mapping"),
            Hook("swa.free", How.AROUND, f"{_AT}.swa_allocator_free:around_free", (BASE,)),
            Hook("swa.free_swa", How.AROUND, f"{_AT}.swa_allocator_free:around_free_swa", (BASE,)),
            Hook("alloc.free_group_begin", How.AROUND, f"{_AT}.swa_allocator_free:around_free_group_begin", (BASE,)),
            Hook("alloc.free_group_end", How.AROUND, f"{_AT}.swa_allocator_free:around_free_group_end", (BASE,)),
            Hook("swa.restore_state", How.AROUND, f"{_AT}.swa_allocator_state:around_restore_state", (BASE,)),
            *(
                Hook(f"swa.{entry}", How.AROUND, f"{_AT}.swa_allocator_segments:around_{entry}", ("0.5.23",))
                for entry in (
                    "free",
                    "free_segment",
                    "free_full",
                    "free_full_segment",
                    "free_swa",
                    "free_swa_segment",
                    "free_group_end",
                )
            ),
        ),
        self_test=f"{_AT}.swa_allocator:self_test",
        synchronises=True,
    ),
    Patch(
        id="geometry",
        kind=Kind.PROBE,
        title="pools, layers, windows and backends fit together, and what layers are bound to stays as it was",
        origin="SGLang issue 17630; the hybrid backend's pool swap; Gemma4Attention's window",
        upstream=NO_UPSTREAM,
        until="0.5.23",
        about=About(
            why="Pools, windows and backends of target and draft that do not fit together show as wrong pages an hour "
            "later. They can be held against each other at the start.",
            eligibility="Every start, once: the target after its workers exist, a frozen draft before its captures. "
            "There one token of each layer is stored in the page that nobody reads, which is put back. What layers "
            "are bound to is looked at again every 64 steps, in trap at each, and at idle: by addresses and numbers, "
            "some microseconds a step. On 0.5.23 the window and the scale that trtllm_mha gives a decode's kernel.",
            fallback="A third swap, inside a capture, cannot be entered and is not checked; nor is what a captured "
            "graph holds of a binding that changes later.",
            proof=(
                "tests/engine/test_geometry_live.py",
                "tests/unit/test_geometry.py",
                "tests/unit/test_probe_geometry.py",
                "tests/unit/test_probe_geometry_later.py",
                "tests/tools/time_bindings.py",
            ),
        ),
        attachments=(
            KNOWN_POOLS,
            Hook("mtp.init_graphs", How.BEFORE, f"{_AT}.geometry:before_draft_graphs"),
            Hook("scheduler.init_model_worker", How.AFTER, f"{_AT}.geometry:after_model_workers"),
            Hook("scheduler.init_model_worker", How.AFTER, f"{_AT}.geometry_later:after_model_workers"),
            Hook("scheduler.next_batch", How.BEFORE, f"{_AT}.geometry_later:before_next_batch"),
            Hook("scheduler.on_idle", How.BEFORE, f"{_AT}.geometry_later:before_idle"),
            Hook("trtllm.init", How.AFTER, f"{_AT}.page_table:after_init"),
            Hook("trtllm.forward_decode", How.BEFORE, f"{_AT}.kernel_arguments:before_attention", ("0.5.23",)),
            Hook("trtllm.forward_extend", How.BEFORE, f"{_AT}.kernel_arguments:before_attention", ("0.5.23",)),
            Hook("trtllm.run_decode", How.BEFORE, f"{_AT}.kernel_arguments:before_decode_kernel", ("0.5.23",)),
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
        until="0.5.23",
        about=About(
            why="SGLang's checker compares sums. It cannot say whose page is lost, nor see a leak that a double free "
            "balances. The ledger knows the owner and the site of every page.",
            eligibility="Token and paged allocators, SWA pairs of them, every radix cache; at idle, before a flush and "
            "every so many steps on request.",
            fallback="A server of which it cannot tell all holders (disaggregation, pipeline stages, HiCache, "
            "HiSparse, mamba) is not audited, and says so.",
            proof=(
                "tests/engine/test_leak_audit_live.py",
                "tests/unit/test_leak_auditor.py",
                "tests/unit/test_probe_leak_ledger.py",
                "tests/tools/bench_leak_ledger.py",
            ),
            switches=("GEMMA4_TRIAGE_LEAK_EVERY",),
        ),
        attachments=(
            KNOWN_POOLS,
            *(
                Hook(f"{pool}.{entry}", How.AROUND, f"{_AT}.leak_allocators:around_inner_alloc")
                for pool, entry in (
                    ("paged", "alloc"),
                    ("paged", "alloc_extend"),
                    ("paged", "alloc_decode"),
                    ("token", "alloc"),
                )
            ),
            Hook("paged.clear", How.AFTER, f"{_AT}.leak_allocators:after_inner_clear"),
            Hook("token.clear", How.AFTER, f"{_AT}.leak_allocators:after_inner_clear"),
            Hook("token.free", How.BEFORE, f"{_AT}.leak_allocators:before_inner_free"),
            Hook("paged.free", How.BEFORE, f"{_AT}.leak_allocators:before_inner_free", (BASE,)),
            Hook("paged.free", How.BEFORE, f"{_AT}.leak_allocators:before_paged_free", ("0.5.23",)),
            Hook("paged.free_page_ids", How.BEFORE, f"{_AT}.leak_allocators:before_free_page_ids", ("0.5.23",)),
            Hook("paged.release_page_ids", How.BEFORE, f"{_AT}.leak_allocators:before_release_page_ids", ("0.5.23",)),
            Hook("alloc.restore_state", How.AROUND, f"{_AT}.leak_allocators:around_restore_state", (BASE,)),
            Hook("swa.alloc", How.AROUND, f"{_AT}.leak_allocators:around_swa_alloc"),
            Hook("swa.alloc_extend", How.AROUND, f"{_AT}.leak_allocators:around_swa_alloc"),
            Hook("swa.alloc_extend_tail", How.AROUND, f"{_AT}.leak_allocators:around_swa_alloc_tail"),
            Hook("swa.alloc_decode", How.AROUND, f"{_AT}.leak_allocators:around_swa_alloc"),
            Hook("swa.set_mapping", How.BEFORE, f"{_AT}.leak_allocators:before_set_mapping"),
            Hook("swa.free", How.BEFORE, f"{_AT}.leak_allocators:before_swa_free", (BASE,)),
            *(
                Hook(f"swa.{entry}", How.AROUND, f"{_AT}.leak_allocators:around_swa_side_free", ("0.5.23",))
                for entry in ("free_swa", "free_swa_segment")
            ),
            Hook("req_pool.alloc", How.AROUND, f"{_AT}.leak_owners:around_req_alloc"),
            Hook("cache.alloc_for_extend", How.AROUND, f"{_AT}.leak_owners:around_alloc_for_extend"),
            Hook("cache.alloc_for_decode", How.AROUND, f"{_AT}.leak_owners:around_alloc_for_decode"),
            Hook("cache.release", How.AROUND, f"{_AT}.leak_owners:around_release"),
            *(
                hook
                for cache in ("radix", "swa_radix")
                for hook in (
                    Hook(f"{cache}.cache_finished", How.AROUND, f"{_AT}.leak_owners:around_cache_finished", (BASE,)),
                    Hook(
                        f"{cache}.cache_unfinished", How.AROUND, f"{_AT}.leak_owners:around_cache_unfinished", (BASE,)
                    ),
                    Hook(f"{cache}.checkpoint", How.AROUND, f"{_AT}.leak_owners:around_checkpoint", ("0.5.23",)),
                    Hook(f"{cache}.evict", How.AROUND, f"{_AT}.leak_owners:around_evict"),
                    Hook(f"{cache}.insert", How.AROUND, f"{_AT}.leak_owners:around_insert"),
                )
            ),
            Hook("swa_radix.evict_for_alloc", How.AROUND, f"{_AT}.leak_owners:around_evict", ("0.5.23",)),
            Hook("batch.evict_swa", How.AROUND, f"{_AT}.leak_owners:around_evict_swa"),
            Hook("eagle.prepare_for_verify", How.AROUND, f"{_AT}.leak_owners:around_prepare_for_verify", (BASE,)),
            Hook("eagle.verify", How.AROUND, f"{_AT}.leak_owners:around_verify", (BASE,)),
            Hook("eagle.v2_prepare_for_decode", How.AROUND, f"{_AT}.leak_owners:around_spec_v2_decode", (BASE,)),
            Hook("eagle.prepare_for_decode", How.AROUND, f"{_AT}.leak_owners:around_eagle_decode", ("0.5.23",)),
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
        title="what a batch carries to its next step fits its requests: write locations, speculative state, rows",
        origin="SGLang 29616 (eager out_cache_loc), SGLang 26859 (a round in which all requests finish), SGLang 33579 "
        "(rows that are too short)",
        upstream=NO_UPSTREAM,
        until="0.5.23",
        about=About(
            why="A batch that carries something of an earlier shape dies a step later, far from its cause: write "
            "locations of another length, speculative state that no merge can take. Slots beyond the end of a "
            "request's row are another request's first ones, and nothing dies of that.",
            eligibility="Eager copies of inputs, merges and filters of every batch, and what spec v2 allocates ahead. "
            "Shapes, types and lengths that the host has: no device work.",
            fallback="Replays of CUDA graphs make no eager copy and are not looked at there.",
            proof=("tests/engine/test_repro_corpus.py", "tests/unit/test_probe_batch_shapes.py"),
        ),
        attachments=(
            Hook("runner.eager_view", How.BEFORE, f"{_AT}.batch_shapes:before_eager_view", (BASE,)),
            Hook("eager.load_batch", How.BEFORE, f"{_AT}.batch_shapes:before_load_batch", ("0.5.23",)),
            Hook("batch.merge", How.BEFORE, f"{_AT}.batch_shapes:before_merge"),
            Hook("batch.filter", How.BEFORE, f"{_AT}.batch_shapes:before_filter"),
            Hook("eagle.v2_prepare_for_decode", How.BEFORE, f"{_AT}.batch_shapes:before_spec_v2_decode", (BASE,)),
            Hook("eagle.prepare_for_decode", How.BEFORE, f"{_AT}.batch_shapes:before_eagle_decode", ("0.5.23",)),
        ),
        self_test=f"{_AT}.batch_shapes:self_test",
    ),
    Patch(
        id="request-rows",
        kind=Kind.PROBE,
        title="rows, lengths, positions, writes and page tables of a batch are those of its requests",
        origin="corrupted rows and lengths that stay in range, or crash inside SGLang's own indexing",
        upstream=NO_UPSTREAM,
        until="0.5.23",
        about=About(
            why="A row that names another request's page, a length that is one too long or a key that is written to "
            "another slot is in range, and kernels follow it in silence. One that is out of range ends the server "
            "inside SGLang's own indexing. The request, the prefix cache and the ledger know what it should be.",
            eligibility="Every forward of the target, with and without MTP, and the rows and counters of all running "
            "requests before each batch is chosen; locks of the prefix cache; the kernel's lengths and page tables on "
            "trtllm_mha, and the lists of slots on Triton outside CUDA graphs, the draft's too; where the target's "
            "sliding layers write on both, by the map, outside CUDA graphs; the positions of the target's forwards, "
            "and of a frozen draft's outside CUDA graphs; the token that a decode or a verification begins with, and "
            "those that a prefill of text reads, of which each request has to have some; a prefix from the cache "
            "against the text that was stored in its slots; what was sampled against the answer; logits that are NaN, "
            "with the keys or values that they come of; in which batch or queue each request is; "
            "the sampling parameters of a batch; that keys and values stand in each slot that a forward was to write, "
            "which is marked before, once a buffer was seen to be used, but for caches of 8 bits (of verifications "
            "both from 0.5.23 on), and that they are the same as they are read next, 4096 tokens of a pool at a time, "
            "but where the prefix cache has a host pool or another server fills the pool. From 0.5.23 on the drafts "
            "that are taken, slots ahead, and what an insert takes and leaves in the prefix cache. It copies rows to "
            "the host and waits for the device, so contain leaves it out unless it is named.",
            fallback="Without the leak ledger the owners of pages are not asked, and the dump says so. With overlap "
            "lengths are not held against the requests' own counts, which lag behind.",
            proof=(
                "tests/unit/test_probe_request_rows.py",
                "tests/unit/test_probe_request_rows_tables.py",
                "tests/unit/test_probe_request_rows_tokens.py",
                "tests/unit/test_probe_request_rows_prompts.py",
                "tests/unit/test_probe_request_rows_texts.py",
                "tests/unit/test_probe_request_rows_begins.py",
                "tests/unit/test_probe_request_rows_finite.py",
                "tests/unit/test_probe_request_rows_kept.py",
                "tests/unit/test_probe_request_rows_sampling.py",
                "tests/unit/test_probe_request_rows_queues.py",
                "tests/unit/test_probe_request_rows_locks.py",
                "tests/unit/test_probe_request_rows_inserts.py",
                "tests/unit/test_probe_request_rows_stops.py",
                "tests/unit/test_probe_request_rows_stored.py",
                "tests/unit/test_probe_request_rows_batches.py",
                "tests/unit/test_request_rows.py",
                "tests/engine/test_request_rows_live.py",
            ),
        ),
        attachments=(
            KNOWN_POOLS,
            Hook("scheduler.next_batch", How.BEFORE, f"{_AT}.request_rows:before_next_batch"),
            Hook("scheduler.next_batch", How.AFTER, f"{_AT}.request_rows:after_next_batch"),
            Hook("cache.alloc_for_extend", How.BEFORE, f"{_AT}.request_rows:before_alloc_for_extend"),
            Hook("scheduler.run_batch", How.BEFORE, f"{_AT}.request_rows:before_run_batch"),
            Hook("scheduler.run_batch", How.AFTER, f"{_AT}.request_rows:after_run_batch"),
            Hook("runner.sample", How.BEFORE, f"{_AT}.request_rows:before_sample"),
            Hook("sampler.forward", How.BEFORE, f"{_AT}.request_rows:before_sampler"),
            Hook("batch.filter", How.AFTER, f"{_AT}.request_rows:after_filter"),
            Hook("batch.merge", How.AFTER, f"{_AT}.request_rows:after_batch_changes"),
            Hook("forward_batch.init_new", How.AFTER, f"{_AT}.request_rows:after_init_new"),
            Hook("trtllm.init_metadata", How.BEFORE, f"{_AT}.request_rows:before_trtllm_metadata"),
            Hook("triton.init_metadata", How.BEFORE, f"{_AT}.request_rows:before_triton_metadata"),
            Hook("trtllm.init_metadata", How.AFTER, f"{_AT}.request_rows:after_trtllm_metadata"),
            Hook("triton.init_metadata", How.AFTER, f"{_AT}.request_rows:after_triton_metadata"),
            Hook("mtp.set_positions", How.AFTER, f"{_AT}.request_rows:after_set_positions"),
            Hook("swa_radix.insert", How.AROUND, f"{_AT}.request_rows:around_insert", ("0.5.23",)),
            Hook("eagle.sample", How.AFTER, f"{_AT}.request_rows:after_sample", ("0.5.23",)),
        ),
        self_test=f"{_AT}.request_rows:self_test",
        synchronises=True,
    ),
    Patch(
        id="accept-length",
        kind=Kind.PROBE,
        title="drafts accepted far less than before, or hardly ever, leave an event: a dump that stops nothing",
        origin="SGLang 25103: drafts that read wrong pages in range change no answer, only how many are accepted",
        upstream=NO_UPSTREAM,
        until="0.5.23",
        about=About(
            why="A draft that reads another page of the right pool changes no token, because the target verifies all. "
            "Only the accept length falls, and nobody sees when.",
            eligibility="Every verification of a server with MTP, from the requests' own counters: the latest 32 "
            "beside all before them, of which there must be 64, and the first 128 alone. No device work.",
            fallback="A change of the text looks alike, so the event says so and stops nothing in any mode.",
            proof=("tests/unit/test_accept_length.py", "tests/engine/test_accept_length_live.py"),
        ),
        attachments=(Hook("results.process_decode", How.AFTER, f"{_AT}.accept_length:after_process_decode"),),
        self_test=f"{_AT}.accept_length:self_test",
    ),
    Patch(
        id="process-end",
        kind=Kind.PROBE,
        title="a scheduler that dies of an exception leaves a dump, and a process that ends says how in its manifest",
        origin="crashes inside SGLang's own indexing, before any check of an index had run, which left no evidence",
        upstream=NO_UPSTREAM,
        until="0.5.23",
        about=About(
            why="An exception in allocation or in the preparation of a batch ends the server before any probe has "
            "looked. Its dump holds traceback, batch and rows; a killed server can be told from a stopped one.",
            eligibility="Everything that the scheduler's event loop does; SIGTERM, Engine.shutdown and SGLang's own "
            "report of a failed worker in the process that started it.",
            fallback="A process that is killed, or stopped before it serves, leaves no mark, and its manifest shows "
            "that. Nothing is checked in a step, so nothing is paid for.",
            proof=("tests/unit/test_probe_process_end.py", "tests/engine/test_process_end_live.py"),
        ),
        attachments=(
            Hook("scheduler.event_loop", How.AROUND, f"{_AT}.process_end:around_event_loop"),
            Hook("signals.sigterm", How.BEFORE, f"{_AT}.process_end:before_sigterm"),
            Hook("signals.child_failed", How.BEFORE, f"{_AT}.process_end:before_child_failed"),
            Hook("engine.shutdown", How.BEFORE, f"{_AT}.process_end:before_shutdown"),
        ),
        self_test=f"{_AT}.process_end:self_test",
    ),
    Patch(
        id="probe-cost",
        kind=Kind.PROBE,
        title="the time that probes take of the scheduler's thread, per kind of step, in /server_info",
        origin="this project: a cost that is claimed has to be measurable where the probes run",
        upstream=NO_UPSTREAM,
        until="0.5.23",
        asked_by="cost",
        # Last, and so outermost: a step has its kind before any other probe meets it.
        about=About(
            why="A cost that is claimed has to be measurable where the probes run: microseconds of the scheduler's "
            "thread, per probe and kind of step.",
            eligibility="Every hook of every probe that is on.",
            fallback="Without another probe there is nothing to time, and the start is refused.",
            proof=(
                "tests/unit/test_cost.py",
                "tests/engine/test_bench_probes.py",
                "docs/bench/probes_h200_2026-11-21_scaled_mtp_on.json",
            ),
        ),
        attachments=(
            Hook("scheduler.run_batch", How.BEFORE, f"{_AT}.probe_cost:before_run_batch"),
            Hook("scheduler.on_idle", How.BEFORE, f"{_AT}.probe_cost:before_idle"),
            Hook("scheduler.internal_state", How.AFTER, f"{_AT}.probe_cost:after_internal_state"),
        ),
        self_test=f"{_AT}.probe_cost:self_test",
    ),
)
