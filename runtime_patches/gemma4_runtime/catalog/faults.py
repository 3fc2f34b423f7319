"""Faults: known defects that are put back, only when named."""

from __future__ import annotations

from gemma4_runtime.catalog.origins import SEED
from gemma4_runtime.catalog.shared_hooks import FAULT_HOOKS
from gemma4_runtime.patch import About, Hook, How, Kind, Patch

_AT = "gemma4_runtime.faults"
FAULTS: tuple[Patch, ...] = (
    Patch(
        id="swa-state-stale",
        kind=Kind.FAULT,
        needs=("mtp", "trtllm_mha", "swa-pool"),
        title="draft backend resolves its SWA state from its own, non-SWA pool (the seed bug)",
        origin=f"{SEED}; SGLang before TRTLLMHAAttnBackend._resolve_swa_kv_pool",
        upstream="resolved from the allocator in 0.5.13",
        attachments=(
            Hook("trtllm.resolve_swa_pool", How.REPLACE, f"{_AT}.swa_state_stale:resolve_from_active_pool"),
            *FAULT_HOOKS,
        ),
    ),
    Patch(
        id="swa-alloc-oob",
        kind=Kind.FAULT,
        needs=("decode-allocations", "swa-pool"),
        title="SWA allocator hands out an index beyond its pool, once",
        origin=SEED,
        upstream="an injected fault; no release has it",
        attachments=(
            Hook("swa.alloc", How.AFTER, f"{_AT}.swa_alloc_oob:spoil"),
            Hook("swa.alloc_decode", How.AFTER, f"{_AT}.swa_alloc_oob:spoil"),
            *FAULT_HOOKS,
        ),
    ),
    Patch(
        id="page-past-the-end",
        kind=Kind.FAULT,
        needs=("mtp", "trtllm_mha", "swa-pool"),
        title="a live entry of the sliding-window table names the first page past the buffer's end",
        origin="SGLang 9123, an injected form of it",
        upstream="an injected fault; no release has it",
        attachments=(
            Hook("trtllm.init_metadata", How.AFTER, f"{_AT}.page_past_the_end:point_past_the_end"),
            *FAULT_HOOKS,
        ),
    ),
    Patch(
        id="negative-page",
        kind=Kind.FAULT,
        needs=("mtp", "trtllm_mha"),
        title="a live entry of the full table holds -1",
        origin="TensorRT-LLM 16280, an injected form of it",
        upstream="an injected fault; no release has it",
        attachments=(Hook("trtllm.init_metadata", How.AFTER, f"{_AT}.negative_page:leave_unassigned"), *FAULT_HOOKS),
    ),
    Patch(
        id="stale-mapping",
        kind=Kind.FAULT,
        needs=("swa-pool",),
        title="free_swa gives SWA pages back and leaves the full-to-SWA mapping as it was",
        origin="SGLang 25805",
        upstream="mapping cleared per token in 0.5.13, per page in 0.5.14",
        attachments=(Hook("swa.free_swa", How.AROUND, f"{_AT}.stale_mapping:keep_mapping"), *FAULT_HOOKS),
    ),
    Patch(
        id="free-of-page-zero",
        kind=Kind.FAULT,
        needs=(),
        title="a finished request also frees an unset entry of its row: slot 0",
        origin="SGLang 38519, an injected form of it",
        upstream="an injected fault; no release has it",
        attachments=(Hook("cache.release", How.BEFORE, f"{_AT}.free_of_page_zero:free_unset_entry"), *FAULT_HOOKS),
    ),
    Patch(
        id="hybrid-pool-unswapped",
        kind=Kind.FAULT,
        needs=("mtp", "swa-pool"),
        title="draft on a hybrid backend whose decode child keeps the dummy pool",
        origin="SGLang 26966 swaps one backend's state; a hybrid has two more",
        upstream="open up to 0.5.23",
        attachments=(
            Hook("mtp.init_draft_backend", How.AFTER, f"{_AT}.hybrid_pool_unswapped:wrap_in_hybrid"),
            *FAULT_HOOKS,
        ),
    ),
    Patch(
        id="full-draft-through-swa-map",
        kind=Kind.FAULT,
        needs=("mtp", "trtllm_mha", "swa-pool"),
        title="the draft's full layers read the full buffer with translated page ids",
        origin="SGLang 25103",
        upstream="fixed before 0.5.13",
        attachments=(
            Hook("trtllm.init", How.AFTER, f"{_AT}.full_draft_through_swa_map:remember_draft"),
            Hook("trtllm.layer_table", How.AFTER, f"{_AT}.full_draft_through_swa_map:take_swa_table"),
            *FAULT_HOOKS,
        ),
    ),
    Patch(
        id="one-untranslated-row",
        kind=Kind.FAULT,
        needs=("mtp", "trtllm_mha", "swa-pool"),
        title="one row of the sliding-window table skips the full-to-SWA translation",
        origin="SGLang 24402, an injected form of it",
        upstream="an injected fault; no release has it",
        attachments=(Hook("trtllm.init_metadata", How.AFTER, f"{_AT}.one_untranslated_row:keep_one_row"), *FAULT_HOOKS),
    ),
    Patch(
        id="page-over-count",
        kind=Kind.FAULT,
        needs=("prefix-cache", "swa-pool"),
        title="the prefix cache takes one evicted SWA page of a finished request for present",
        origin="SGLang 27789, an injected form of it",
        upstream="an injected fault; no release has it",
        attachments=(Hook("swa_radix.insert", How.AROUND, f"{_AT}.page_over_count:understate_evicted"), *FAULT_HOOKS),
    ),
    Patch(
        id="deferred-free-after-replacement",
        kind=Kind.FAULT,
        needs=("swa-pool",),
        title="the SWA page of slots in a free group is replaced before the group is flushed",
        origin="SGLang 36081",
        upstream="recovery inside a free group exists from 0.5.18 on",
        attachments=(
            Hook("alloc.free_group_end", How.AROUND, f"{_AT}.deferred_free_after_replacement:replace_before_flush"),
            *FAULT_HOOKS,
        ),
    ),
    Patch(
        id="draft-pool-too-small",
        kind=Kind.FAULT,
        needs=("mtp", "swa-pool"),
        title="the full pool that the draft reads ends before the allocator's",
        origin="SGLang 17630",
        upstream="fixed before 0.5.13",
        attachments=(Hook("mtp.bind_context", How.AFTER, f"{_AT}.draft_pool_too_small:shorten_pool"), *FAULT_HOOKS),
    ),
    Patch(
        id="unmergeable-spec-info",
        kind=Kind.FAULT,
        needs=("mtp-v1",),
        title="a round in which all requests finish leaves the verify input on the batch",
        origin="SGLang 26859",
        upstream="fixed before 0.5.13",
        attachments=(
            Hook("mtp.preprocess_idle", How.REPLACE, f"{_AT}.unmergeable_spec_info:leave_verify_input"),
            *FAULT_HOOKS,
        ),
    ),
    Patch(
        id="double-bookkeeping",
        kind=Kind.FAULT,
        needs=("mtp-v1",),
        title="requests that V1 verify finished are taken for released, as under spec V2",
        origin="the symptom of SGLang 7130; a V1 worker wrapped for spec V2",
        upstream="no release combines V1 verify with the V2 scheduler",
        attachments=(
            Hook("results.process_decode", How.AROUND, f"{_AT}.double_bookkeeping:skip_finished"),
            *FAULT_HOOKS,
        ),
    ),
    Patch(
        id="finish-inside-forward",
        kind=Kind.FAULT,
        needs=("mtp", "overlap"),
        title="verification under spec v2 ends requests itself, as V1's does, and nobody releases them",
        origin="the symptom of SGLang 7130; MTP's published leak of 24 tokens per finished request",
        upstream="no release combines V1 verify with the V2 scheduler",
        attachments=(Hook("eagle_v2.verify", How.AROUND, f"{_AT}.finish_inside_forward:end_requests"), *FAULT_HOOKS),
    ),
    Patch(
        id="alloc-on-one-pool",
        kind=Kind.FAULT,
        needs=("decode-allocations", "pages", "swa-pool"),
        title="alloc_decode succeeds in the full pool and fails in the SWA pool, once",
        origin="SGLang 7909 brought paged pool pairs",
        upstream="open in 0.5.13",
        attachments=(
            Hook("swa.alloc_decode", How.AROUND, f"{_AT}.alloc_on_one_pool:fail_swa_side"),
            *FAULT_HOOKS,
        ),
    ),
    Patch(
        id="yoco-stale-cache-loc",
        kind=Kind.FAULT,
        needs=(),
        title="a prefill cut to last rows keeps the write locations of all: Triton reads another token's keys",
        origin="SGLang 27183, the published YOCO fast prefill",
        upstream="not merged up to 0.5.23",
        attachments=(
            Hook("gemma4.text_forward", How.AROUND, f"{_AT}.yoco_stale_cache_loc:around_text_forward"),
            Hook("scheduler.internal_state", How.AFTER, f"{_AT}.yoco_stale_cache_loc:after_internal_state"),
            *FAULT_HOOKS,
        ),
        own_paths=("fused",),
        last_rows_only=True,
        instead_of=("yoco",),
        about=About(
            why="The short prefill as it was published gives wrong tokens on Triton attention and fails nowhere. Put "
            "back on request, it shows that comparing logits catches what no probe sees.",
            eligibility="Prefills that the patch yoco would shorten, whose place it takes. Triton attention then "
            "answers wrong; trtllm_mha finds keys by page and answers right.",
            fallback="Every other prefill is SGLang's own, in all layers and rows.",
            proof=("tests/engine/test_logit_faults_live.py",),
        ),
    ),
)
