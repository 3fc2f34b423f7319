"""Faults that some release had, each with the findings that the probes must make of it."""

from __future__ import annotations

from gemma4_repro.corpus.case import FaultCase, LogitFault, Origin
from gemma4_repro.corpus.finding import Finding
from gemma4_repro.corpus.proofs import (
    all_in_one_row,
    first_page_past_the_end,
    one_swa_page_missing,
    one_swa_page_too_many,
    owner_is_known,
    slot_of_page_zero,
)
from gemma4_repro.staged_workload import BRIEF, PAST_THE_WINDOW, UNDER_PRESSURE, at_once
from gemma4_repro.workloads import OpenWorkload

_DRAFT_SLIDING_TABLE = {
    "role": "draft",
    "layer.type": "sliding",
    "provenance.table_space": "full",
    "provenance.buffer_space": "swa",
    "site": "TRTLLMHAAttnBackend.init_forward_metadata",
}

FAULTS: tuple[FaultCase, ...] = (
    FaultCase(
        id="swa-state-stale",
        title="draft reads the sliding-window buffer with full-pool page ids",
        origin=Origin(
            "SGLang 26957",
            "MTP on trtllm_mha dies of an illegal memory access once the SWA pool is mostly in use",
        ),
        injected="the draft backend takes its SWA state from its own pool, which is none; the fix is off",
        inject=("swa-state-stale",),
        without=("swa-state-swap",),
        workload=UNDER_PRESSURE,
        findings=(
            Finding("geometry", "geometry", "swa_state", {"role": "draft"}),
            Finding("page-table", "page-table-bounds", "wrong_space", _DRAFT_SLIDING_TABLE),
            Finding("page-table", "page-table-bounds", "out_of_range", _DRAFT_SLIDING_TABLE),
        ),
    ),
    FaultCase(
        id="hybrid-pool-unswapped",
        title="the leaf of a hybrid backend keeps the draft's dummy pool",
        origin=Origin(
            "SGLang 26966", "its fix leaves the hybrid case: a target layer id indexes a list that is too short"
        ),
        injected="the draft's backend is wrapped as a hybrid one; the fix that walks to the leaves is off",
        inject=("hybrid-pool-unswapped",),
        without=("swa-state-swap",),
        workload=BRIEF,
        findings=(
            Finding("geometry", "geometry", "geometry_mismatch", {"role": "draft"}),
            Finding(
                "page-table",
                "page-table-bounds",
                "wrong_space",
                {"role": "draft", "provenance.buffer_space": "unknown", "provenance.table_space": ("swa", "full")},
            ),
        ),
    ),
    FaultCase(
        id="full-draft-through-swa-map",
        title="the draft's full layers read the full buffer with translated page ids",
        origin=Origin("SGLang 25103", "no error at all: accept length is lower than it should be"),
        injected="the draft gets the sliding-window page table for its full layers too",
        inject=("full-draft-through-swa-map",),
        workload=UNDER_PRESSURE,
        findings=(
            Finding(
                "page-table",
                "page-table-bounds",
                "wrong_space",
                {
                    "role": "draft",
                    "site": "TRTLLMHAAttnBackend.init_forward_metadata",
                    "layer.type": "full",
                    "provenance.table_space": "swa",
                    "provenance.buffer_space": "full",
                },
            ),
        ),
    ),
    FaultCase(
        id="page-past-the-end",
        title="a page id one past the end of the sliding-window pool",
        origin=Origin(
            "SGLang 9123", "illegal memory access on a sliding-window model as the last SWA pages come into use"
        ),
        injected="the last live column of one row of the SWA table holds the number of pages in the buffer",
        inject=("page-past-the-end",),
        workload=BRIEF,
        findings=(
            Finding(
                "page-table",
                "page-table-bounds",
                "out_of_range",
                {
                    "role": "target",
                    "site": "TRTLLMHAAttnBackend.init_forward_metadata",
                    "layer.type": "sliding",
                    "provenance.table_space": "swa",
                    "provenance.buffer_space": "swa",
                },
                (first_page_past_the_end,),
            ),
        ),
    ),
    FaultCase(
        id="one-untranslated-row",
        title="one row of eight holds full-pool ids in the sliding-window table",
        origin=Origin(
            "SGLang 24402", "page tables of speculative metadata reach sliding layers untranslated: illegal access"
        ),
        injected="row 5 of the SWA table is copied from the full table",
        inject=("one-untranslated-row",),
        workload=UNDER_PRESSURE,
        findings=(
            Finding(
                "page-table",
                "page-table-bounds",
                "out_of_range",
                {"role": "target", "layer.type": "sliding", "provenance.buffer_space": "swa", "offences.0.row": 5},
                (all_in_one_row,),
            ),
        ),
        earlier=(
            Finding(
                "request-rows",
                "request-rows",
                "table_entry",
                {
                    "role": "target",
                    "scalars.structure": "swa page table",
                    "scalars.defect": "other space",
                    "offences.0.row": 5,
                },
                (all_in_one_row,),
            ),
        ),
    ),
    FaultCase(
        id="negative-page",
        title="the mark -1 of an unassigned page in a live column",
        origin=Origin("TensorRT-LLM 16280", "draft tokens cross into a page whose offset is still -1: illegal access"),
        injected="the last live column of one row of the full table holds -1",
        inject=("negative-page",),
        workload=BRIEF,
        findings=(
            Finding(
                "page-table",
                "page-table-bounds",
                "negative",
                {
                    "role": "target",
                    "site": "TRTLLMHAAttnBackend.init_forward_metadata",
                    "layer.type": "full",
                    "provenance.table_space": "full",
                    "provenance.buffer_space": "full",
                },
            ),
        ),
    ),
    FaultCase(
        id="stale-mapping",
        title="full-to-SWA mapping outlives the SWA page, which is then freed twice",
        origin=Origin(
            "SGLang 25805", "an assertion says that more SWA slots are free than the pool has, after many requests"
        ),
        injected="free_swa leaves the mapping of the slots that it frees as it was",
        inject=("stale-mapping",),
        workload=PAST_THE_WINDOW,
        findings=(
            Finding(
                "swa-allocator",
                "swa-stale-mapping",
                "stale_mapping",
                {"site": "SWATokenToKVPoolAllocator.free_swa", "pool_kind": "swa"},
            ),
            Finding("leak-ledger", "leak-audit", "stale_mapping", {"pool_kind": "full"}, (owner_is_known,)),
        ),
    ),
    FaultCase(
        id="page-over-count",
        title="the prefix cache counts an SWA page that the pool has back",
        origin=Origin(
            "SGLang 27789", "SGLang's own check stops the server: the parts of the SWA pool exceed it by one page"
        ),
        injected="a finished request tells the prefix cache of one evicted SWA page less than there is",
        inject=("page-over-count",),
        workload=PAST_THE_WINDOW,
        findings=(
            Finding(
                "leak-ledger",
                "leak-audit",
                "null_page_live",
                {"pool_kind": "full"},
                (owner_is_known, one_swa_page_too_many),
            ),
        ),
    ),
    FaultCase(
        id="deferred-free-after-replacement",
        title="a grouped free releases the SWA page that replaced the one it was asked to free",
        origin=Origin(
            "SGLang 36081", "one SWA page is missing after grouped frees, and the server's own check stops it"
        ),
        injected="one SWA page of a free group is replaced before the group is flushed",
        inject=("deferred-free-after-replacement",),
        workload=BRIEF,
        findings=(
            Finding(
                "leak-ledger", "leak-audit", "pool_leak", {"pool_kind": "swa"}, (owner_is_known, one_swa_page_missing)
            ),
        ),
        earlier=(Finding("swa-allocator", "swa-lost-pages", "pool_leak", {"pool_kind": "swa", "offence_count": 1}),),
    ),
    FaultCase(
        id="draft-pool-too-small",
        title="the pool that the draft reads ends before the allocator's",
        origin=Origin(
            "SGLang 17630", "speculation on a sliding-window model dies of an index out of bounds under load"
        ),
        injected="the draft is bound to a view of the target's full pool that holds 8 pages",
        inject=("draft-pool-too-small",),
        workload=BRIEF,
        findings=(
            Finding("geometry", "geometry", "pool_too_small", {"role": "draft"}),
            Finding(
                "page-table",
                "page-table-bounds",
                "out_of_range",
                {
                    "role": "draft",
                    "site": "TRTLLMHAAttnBackend.init_forward_metadata",
                    "layer.type": "full",
                    "provenance.table_space": "full",
                    "provenance.buffer_space": "full",
                },
            ),
        ),
    ),
    FaultCase(
        id="eager-out-cache-loc",
        title="the draft's batch carries the write locations that target verify left",
        origin=Origin(
            "SGLang 29616", "with CUDA graphs off, the first draft after a verify dies on tensor sizes, 29 and 30"
        ),
        injected="nothing: the release has it. The fix is off",
        without=("eager-out-cache-loc",),
        workload=BRIEF,
        findings=(
            Finding(
                "batch-shapes",
                "batch-shapes",
                "stale_write_rows",
                {"role": "draft", "site": "ModelRunner._eager_fb_view", "forward_mode": "DECODE"},
            ),
        ),
    ),
    FaultCase(
        id="unmergeable-spec-info",
        title="a batch without a draft input after a round in which all its requests finished",
        origin=Origin("SGLang 26859", "the scheduler dies of a missing merge_batch when a prefill joins such a batch"),
        injected="the worker leaves the verify input on the batch instead of an empty draft input; the fix is off",
        inject=("unmergeable-spec-info",),
        without=("spec-info-guards",),
        workload=BRIEF,
        findings=(
            Finding(
                "batch-shapes",
                "batch-shapes",
                "unusable_spec_info",
                {"site": "ScheduleBatch.filter_batch", "scalars.spec_info": "FrozenKVMTPVerifyInput"},
            ),
        ),
    ),
    FaultCase(
        id="row-too-short",
        title="spec v2 allocates more slots ahead than a request's row of req_to_token has room for",
        origin=Origin(
            "SGLang 33579",
            "slots leak as requests reach the end of their context, and a neighbour's row is overwritten",
        ),
        injected="nothing: the release has it. The fix is off",
        along=("mtp-v2",),
        without=("spec-v2-row-width",),
        # With fewer than 8 draft tokens a step rows have room enough.
        engine={
            "disable_overlap_schedule": False,
            "context_length": 96,
            "speculative_num_steps": 7,
            "speculative_num_draft_tokens": 8,
        },
        # Later releases make room on pages of several tokens, and end a request so much earlier that 8 fit.
        later_engine={
            "attention_backend": "triton",
            "page_size": 1,
            # The interpreter takes a program for each split of a row.
            "triton_attention_num_kv_splits": 1,
            "context_length": 80,
            "speculative_num_steps": 15,
            "speculative_num_draft_tokens": 16,
        },
        # Triton attention under the interpreter takes minutes there, five on a busy machine.
        time_limit_s=900.0,
        workload=at_once(OpenWorkload(prompt_count=2, prompt_tokens=60)),
        findings=(
            Finding(
                "batch-shapes",
                "batch-shapes",
                "row_overflow",
                {"site": ("EagleDraftInputV2Mixin.prepare_for_decode", "eagle_prepare_for_decode")},
            ),
        ),
        # The row behind holds another's slots from then on.
        consequences=(("request-rows", "row_entry"),),
    ),
    FaultCase(
        id="double-bookkeeping",
        title="requests that V1 verify finished are never released",
        origin=Origin(
            "SGLang 7130", "with MTP and pages of several tokens, the server's own check finds tokens that leaked"
        ),
        injected="the processing of decode results skips finished requests, as it does with overlap scheduling",
        inject=("double-bookkeeping",),
        workload=BRIEF,
        findings=(Finding("leak-ledger", "leak-audit", "pool_leak", proofs=(owner_is_known,)),),
    ),
    FaultCase(
        id="finish-inside-forward",
        title="MTP with overlap scheduling, and a verification that ends requests itself",
        origin=Origin(
            "SGLang 7130", "every request that ends leaves a few tokens behind that are neither free nor in the cache"
        ),
        injected="the verification of spec v2 ends requests inside the forward, as that of V1 does",
        inject=("finish-inside-forward",),
        along=("mtp-v2",),
        engine={"disable_overlap_schedule": False},
        workload=BRIEF,
        findings=(Finding("leak-ledger", "leak-audit", "pool_leak", proofs=(owner_is_known,)),),
    ),
    FaultCase(
        id="window-one-too-wide",
        title="sliding layers see one key more than the model's window holds",
        origin=Origin("SGLang 26147", "outputs differ slightly from transformers' once a sequence passes the window"),
        injected="nothing: the release has it. The fix is off, as it is by default",
        without=("swa-window-width",),
        workload=BRIEF,
        findings=(Finding("geometry", "geometry", "window_width"),),
    ),
    FaultCase(
        id="free-of-page-zero",
        title="a caller frees slot 0, an unset entry of a request's row",
        origin=Origin(
            "SGLang 38519", "slots without an SWA peer are freed as page 0, until more is free than the pool has"
        ),
        injected="a finished request also frees the last entry of its row, which was never written",
        inject=("free-of-page-zero",),
        workload=BRIEF,
        trap=True,
        findings=(
            Finding(
                "swa-allocator",
                "swa-free-range",
                "free_out_of_range",
                {"site": "SWATokenToKVPoolAllocator.free", "pool_kind": "full"},
                (slot_of_page_zero,),
            ),
        ),
    ),
    FaultCase(
        id="alloc-on-one-pool",
        title="a decode allocation succeeds in the full pool and fails in the SWA pool",
        origin=Origin(
            "SGLang 7909", "paged pool pairs allocate one after the other; a failure of the second keeps the first"
        ),
        injected="the SWA side of one alloc_decode gives nothing",
        inject=("alloc-on-one-pool",),
        mtp=False,
        workload=BRIEF,
        findings=(
            Finding(
                "swa-allocator",
                "swa-lost-pages",
                "pool_leak",
                {"site": "SWATokenToKVPoolAllocator.alloc_decode", "pool_kind": "full"},
            ),
        ),
    ),
    FaultCase(
        id="swa-alloc-oob",
        title="the SWA allocator hands out a slot beyond its pool",
        origin=Origin("SGLang 9123", "the same symptom, one station earlier: the index is wrong when it is handed out"),
        injected="one decode allocation maps its last token to the first slot past the sliding-window buffer",
        inject=("swa-alloc-oob",),
        workload=BRIEF,
        mtp=False,
        findings=(
            Finding(
                "swa-allocator",
                "swa-alloc-range",
                "alloc_out_of_range",
                {"site": "SWATokenToKVPoolAllocator.alloc_decode", "pool_kind": "swa"},
                (first_page_past_the_end,),
            ),
            Finding(
                "page-table",
                "page-table-bounds",
                "write_out_of_range",
                {"role": "target", "layer.type": "sliding", "provenance.buffer_space": "swa"},
                (first_page_past_the_end,),
            ),
        ),
    ),
)

LOGIT_FAULTS: tuple[LogitFault, ...] = (
    LogitFault(
        id="yoco-stale-cache-loc",
        title="a prefill cut to last rows keeps the write locations of all its tokens",
        origin=Origin("SGLang 27183", "none yet: the pull request is open, and its tests replace attention by a mock"),
        injected="in layers that share keys, query i reads the key of the batch's token i in the place of its own",
        inject=("yoco-stale-cache-loc",),
        unlike=("yoco",),
        backend="triton",
    ),
)
"""Faults that no probe can see, because they change answers alone: the logit gate catches them."""
