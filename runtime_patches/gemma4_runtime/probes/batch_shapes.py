"""Probe `batch-shapes`: what a batch carries into the next step fits the requests that it has then.

| hook                              | finding            | what SGLang would do next                             |
|-----------------------------------|--------------------|-------------------------------------------------------|
| before prepare_for_decode, spec v2| row_overflow       | write them into another request's row                 |
| before ModelRunner._eager_fb_view | stale_write_rows   | copy out_cache_loc into a shorter buffer, and die     |
|   from 0.5.23 EagerRunner.load_batch|                  |                                                       |
| before ScheduleBatch.merge_batch  | unusable_spec_info | AttributeError, or a draft from nothing a step later  |
| before ScheduleBatch.filter_batch | unusable_spec_info | AttributeError here, or at the merge after it         |

A batch whose requests have all left is looked at as well: SGLang skips its speculative state then, and merges the next
prefill into that very batch if one comes before it is dropped. With the fix `spec-info-guards` such a batch goes on as
it should and is no finding; one with unfinished requests stays one.

Host-only: shapes, types and lengths, no device work and no synchronisation.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from gemma4_dumps.draft import DumpDraft
from gemma4_dumps.schema import Provenance
from gemma4_runtime import current
from gemma4_runtime.checks.batch_shapes import (
    check_row_ends,
    check_write_rows,
    filter_problem,
    has_draft_inputs,
    kept_by_filter,
    merge_can_be_mended,
    merge_problem,
    unfinished,
)
from gemma4_runtime.checks.violation import Violation
from gemma4_runtime.errors import VerificationFailed
from gemma4_runtime.evidence import offences, payload
from gemma4_runtime.release import get_alloc_reserve_per_decode
from gemma4_runtime.release.requests import held
from gemma4_runtime.steps import latest_step_number

RULE = "batch-shapes"
_VIEW = "ModelRunner._eager_fb_view"
_LATER_VIEW = "EagerRunner.load_batch"
_MERGE = "ScheduleBatch.merge_batch"
_FILTER = "ScheduleBatch.filter_batch"
_AHEAD = "EagleDraftInputV2Mixin.prepare_for_decode"
_AHEAD_LATER = "eagle_prepare_for_decode"
_GUARDS = "spec-info-guards"


def before_eager_view(runner: Any, forward_batch: Any, *args: Any, **kwargs: Any) -> None:
    """Run before the inputs of an eager forward are copied into the runner's buffers."""
    _check_rows(runner, forward_batch, _VIEW)


def before_load_batch(eager: Any, forward_batch: Any, **_unknown: Any) -> None:
    """Run before `EagerRunner.load_batch`, which copies an eager forward's inputs in later releases."""
    _check_rows(eager.model_runner, forward_batch, _LATER_VIEW)


def _check_rows(runner: Any, forward_batch: Any, site: str) -> None:
    if forward_batch.out_cache_loc is None or forward_batch.input_ids is None:
        return
    rows, tokens = forward_batch.out_cache_loc.shape[0], forward_batch.input_ids.shape[0]
    violation = check_write_rows(rows, tokens)
    if violation is None:
        return
    role = "draft" if runner.is_draft_worker else "target"
    summary = (
        f"the {role}'s batch has {tokens} tokens and {rows} write locations: out_cache_loc is left from an earlier step"
    )

    def draft() -> DumpDraft:
        return DumpDraft(
            rule=RULE,
            site=site,
            summary=summary,
            verdict=violation.verdict,
            provenance=Provenance(table_origin="ForwardBatch.out_cache_loc", explanation=summary),
            role=role,
            forward_mode=forward_batch.forward_mode.name,
            step=int(runner.forward_pass_id),
            page_size=int(runner.page_size),
            scalars={"rows": rows, "tokens": tokens, "requests": int(forward_batch.batch_size)},
            offences=offences(violation.listed, "out_cache_loc"),
            tensors={"out_cache_loc": payload(forward_batch.out_cache_loc)},
        )

    current.guard().report(violation, RULE, site, draft)


def before_merge(batch: Any, other: Any, **_unknown: Any) -> None:
    """Run before `merge_batch(other)`."""
    problem = merge_problem(batch.spec_info, other.spec_info)
    if problem is not None and not (_guards_act_on(batch) and merge_can_be_mended(batch, other)):
        _report_state(problem, _MERGE, batch, other)


def before_filter(
    batch: Any, chunked_req_to_exclude: Any = None, keep_indices: list[int] | None = None, *args: Any, **kwargs: Any
) -> None:
    """Run before `filter_batch(...)`; later releases call the first argument `reqs_to_exclude`."""
    chunked_req_to_exclude = kwargs.get("reqs_to_exclude", chunked_req_to_exclude)
    problem = filter_problem(batch.spec_info)
    if problem is None:
        return
    if not _guards_act_on(batch) or unfinished(kept_by_filter(batch, chunked_req_to_exclude, keep_indices)):
        _report_state(problem, _FILTER, batch, None)


def before_spec_v2_decode(draft_input: Any, batch: Any, **_unknown: Any) -> None:
    """Run before `prepare_for_decode(batch)` of spec v2, which allocates slots ahead and writes them into rows."""
    _check_rows_ahead(batch, draft_input, _AHEAD)


def before_eagle_decode(batch: Any, **_unknown: Any) -> None:
    """Run before `eagle_prepare_for_decode(batch)`, which has taken the place of the method."""
    _check_rows_ahead(batch, batch.spec_info, _AHEAD_LATER)


def _check_rows_ahead(batch: Any, draft_input: Any, site: str) -> None:
    width = batch.req_to_token_pool.req_to_token.shape[1]
    ahead = get_alloc_reserve_per_decode()
    holdings = [held(request) for request in batch.reqs]
    allocated = [max(one.kv_allocated_len, one.kv_committed_len + ahead) for one in holdings]
    violation = check_row_ends([one.req_pool_idx for one in holdings], allocated, width)
    if violation is None:
        return
    first = violation.first
    summary = (
        f"request slot {first.row} is to have {first.value} KV slots and its row of req_to_token has {width} columns: "
        f"the last {first.value - width} would be in the row behind it"
    )

    def draft() -> DumpDraft:
        return DumpDraft(
            rule=RULE,
            site=site,
            summary=summary,
            verdict=violation.verdict,
            provenance=Provenance(table_origin="ReqToTokenPool.req_to_token", explanation=summary),
            forward_mode=None if batch.forward_mode is None else batch.forward_mode.name,
            step=latest_step_number(),
            page_size=int(batch.token_to_kv_pool_allocator.page_size),
            offences=offences(violation.listed, "req_to_token"),
            scalars={
                "spec_info": type(draft_input).__name__,
                "width": width,
                "longest": max(allocated),
                "requests": len(allocated),
                "overflowing": violation.count,
            },
        )

    current.guard().report(violation, RULE, site, draft)


def self_test() -> None:
    """Fire on planted batches, stay silent on clean ones.

    Raises:
        VerificationFailed: the checks no longer tell them apart.
    """
    state = SimpleNamespace(merge_batch=print, filter_batch=print)
    clean = (
        check_write_rows(4, 4),
        check_row_ends([1], [8], 8),
        merge_problem(state, state),
        filter_problem(state),
        filter_problem(None),
    )
    planted = (
        check_write_rows(5, 4),
        check_row_ends([1], [9], 8),
        merge_problem(state, None),
        merge_problem(object(), state),
        filter_problem(1),
    )
    if any(clean) or not all(planted):
        raise VerificationFailed(f"{RULE}: self test: clean batches gave {clean}, planted ones gave {planted}")


def _guards_act_on(batch: Any) -> bool:
    return current.switched_on(_GUARDS) and has_draft_inputs(batch)


def _report_state(problem: str, site: str, batch: Any, other: Any) -> None:
    # No index is at fault, so none is listed.
    violation = Violation("unusable_spec_info", (), 0)

    def draft() -> DumpDraft:
        return DumpDraft(
            rule=RULE,
            site=site,
            summary=f"{site.rpartition('.')[2]}: {problem}",
            verdict=violation.verdict,
            provenance=Provenance(table_origin=type(batch.spec_info).__name__, explanation=problem),
            forward_mode=None if batch.forward_mode is None else batch.forward_mode.name,
            step=latest_step_number(),
            scalars={
                "spec_info": type(batch.spec_info).__name__,
                "joining_spec_info": None if other is None else type(other.spec_info).__name__,
                "requests": len(batch.reqs),
                "finished": sum(bool(request.finished()) for request in batch.reqs),
                "joining_requests": 0 if other is None else len(other.reqs),
            },
        )

    current.guard().report(violation, RULE, site, draft)
