"""Probe `request-rows`: what a batch believes of its requests is what they say, before SGLang indexes with it.

| hook                                | what is held against what                                                      |
|-------------------------------------|--------------------------------------------------------------------------------|
| before get_next_batch_to_run        | the rows of all running requests, each of which has one of its own: see        |
|                                     | checks/request_rows.py; the batch's row numbers against the requests; what a   |
|                                     | request counts against its row's width, the nodes that it holds, and what it   |
|                                     | counted before its forward; without drafts, the batch's lengths; the locks of  |
|                                     | the prefix cache against the nodes that requests hold, before a forward too;   |
|                                     | that no answer grows while its prompt is read in chunks, and that each ends in |
|                                     | what was sampled for it (without drafts and overlap); that none goes on behind |
|                                     | a token that ends it; that none of them waits                                  |
| after get_next_batch_to_run         | that none of them waits, and each that ran is in a batch, or waits             |
| before alloc_for_extend             | where a prefill's new tokens begin and end against the slots that each request |
|                                     | has, or its nodes, and against its prompt and answer                           |
| before run_batch                    | that each list of the batch has as many entries as it has requests             |
| after run_batch                     | that the batch is of the kind (forward_mode) that it was run as; that a step   |
|                                     | gives each request as many tokens as its verification took                     |
| before ModelRunner.sample; after    | that keys and values stand in each slot that the forward was to write; that no |
| eagle_sample, from 0.5.23 on        | logit of a request is NaN; else in which layer's keys or values, of which      |
|                                     | token, what it reads is not finite; likewise the hidden state that a frozen    |
|                                     | draft begins with                                                              |
| before Sampler.forward              | that no logit became NaN since then, by what penalties, biases and masks do    |
| after filter_batch and merge_batch  | that the batch has no request twice; that its lists have as many entries as it |
|                                     | has requests; its row numbers, by which the next step allocates                |
| after ForwardBatch.init_new, target | row numbers and lengths against the requests; rows; whether each has slots for |
|                                     | all tokens that the forward writes; each slot that it will write against the   |
|                                     | row's entry of that token, with and without MTP;                               |
|                                     | positions against lengths, and where a prefill's tokens begin; that no more    |
|                                     | has left a window than has slots as a prefill begins; the token that           |
|                                     | a decode or a verification begins with against the request's latest; a prefix  |
|                                     | from the cache against the text that was stored in its slots; that what has    |
|                                     | left its sliding window long ago is given back, which is an event and stops    |
|                                     | nothing; that the keys and values which it reads are those that were stored;   |
|                                     | the sampling parameters of each row against what its request asked for         |
| after the positions of a frozen     | each against the last token of its request that has KV; rows and lengths, by   |
| draft are set                       | which the draft's pages are looked up next; once more, that these were looked  |
|                                     | up for this very draft                                                         |
| before metadata of trtllm_mha and   | the row numbers by which it looks pages up, a draft's too                      |
| Triton                              |                                                                                |
| after trtllm_mha's metadata         | the lengths that the kernel is given against those of the batch, and where     |
|                                     | each request's queries and keys end; each page of a table against the          |
|                                     | request's row, and what the map makes of it; where sliding layers will write   |
|                                     | against what the map makes of the forward's slots                              |
| after Triton's metadata, outside of | the lengths of its lists against those of the batch; each slot of a list       |
| CUDA graphs                         | likewise                                                                       |
| around the prefix cache's insert,   | its key against the text that was stored in its slots; what its nodes have for |
| from 0.5.23 on                      | the tokens at its end: that none of it was given back meanwhile, and nothing   |
|                                     | stands there twice                                                             |
| after eagle_sample, from 0.5.23 on  | how many drafts were taken against what the target has behind each             |

An entry counts as changed if the request was not retracted since the check before and holds the same nodes of the
prefix cache as then: only what inserts its tokens there writes again over a row's old entries. Owners are asked of the
leak ledger where that is on, and the dump says "not checked: ledger off" where it is not. With overlap a request's own
counts lag behind its batch by what waits in the scheduler's queue of results, which is counted in.

It copies rows to the host and waits for the device, so `contain` leaves it out unless it is named.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import torch

from gemma4_dumps.structures import Defect, Structure
from gemma4_runtime.checks.request_rows import Row, WrongEntry, check_path, check_rows, check_values
from gemma4_runtime.defects import defect_of
from gemma4_runtime.errors import VerificationFailed
from gemma4_runtime.indices.owner import role_of
from gemma4_runtime.indices.triton import has_lists_of_its_own
from gemma4_runtime.indices.trtllm import believed_lengths
from gemma4_runtime.release import envs
from gemma4_runtime.release.requests import held
from gemma4_runtime.rows.answers import check_answers, note_sampled
from gemma4_runtime.rows.begins import check_begins, check_bounds, check_read_once, check_spans
from gemma4_runtime.rows.counts import check_counters, check_lengths, check_locks
from gemma4_runtime.rows.drafts import check_draft_lengths, check_draft_plan
from gemma4_runtime.rows.entries import NO_ROW, check_row_entries
from gemma4_runtime.rows.finite import check_handed, check_hidden, check_logits, note_spans
from gemma4_runtime.rows.inserts import can_be_held, check_insert
from gemma4_runtime.rows.kept import check_kept, forget_written
from gemma4_runtime.rows.members import check_members, check_once
from gemma4_runtime.rows.modes import check_mode, note_mode
from gemma4_runtime.rows.places import (
    check_draft_positions,
    check_lists,
    check_positions,
    check_reserved,
    check_swa_writes,
    check_tables,
    check_writes,
    spans_of,
)
from gemma4_runtime.rows.queues import check_none_lost, check_not_waiting, note_running
from gemma4_runtime.rows.report import (
    CHANGED,
    DRAFT_POSITIONS,
    INIT,
    LENGTH,
    LISTS,
    METADATA,
    NEXT,
    ROW_INDEX,
    RULE,
    RUN,
    SAMPLE,
    or_swapped,
    report_wrong,
)
from gemma4_runtime.rows.row_numbers import check_retracted, check_row_indices, check_row_numbers, is_free
from gemma4_runtime.rows.sampling import check_sampling
from gemma4_runtime.rows.seen import Seen, note_counts, seen_of
from gemma4_runtime.rows.sizes import check_sizes
from gemma4_runtime.rows.stops import check_stops
from gemma4_runtime.rows.stored import check_marked, mark_new_slots
from gemma4_runtime.rows.texts import check_namespaces, check_prefixes, forget_texts, note_texts
from gemma4_runtime.rows.tokens import (
    check_accepted,
    check_chunk,
    check_input_tokens,
    check_prompt_tokens,
    check_something_new,
    check_taken,
    note_chunk,
)
from gemma4_runtime.rows.windows import check_none_gone_yet, check_whole_pages, check_window

BEFORE = "ModelRunner.sample"
_running: Seen | None = None
_chooses: Any = None
"""The scheduler that chooses its next batch, or did last."""


def before_next_batch(scheduler: Any, **_unknown: Any) -> None:
    """Check all rows before `Scheduler.get_next_batch_to_run`, where no step is half done and they are read next."""
    global _chooses
    _chooses, batches = scheduler, (scheduler.running_batch, scheduler.last_batch)
    requests = {id(request): request for batch in batches if batch is not None for request in batch.reqs}
    if not scheduler.enable_overlap:
        for batch in batches:
            check_row_numbers(scheduler, batch)
    note_running(scheduler)
    check_not_waiting(scheduler, batches)
    lengths = {number: length for batch in batches if batch is not None for number, length in _lengths_of(batch)}
    check_chunk(scheduler)
    check_answers(scheduler, list(requests.values()))
    check_stops(scheduler, list(requests.values()))
    check_namespaces(scheduler, list(requests.values()))
    check_counters(scheduler, list(requests.values()), lengths)
    check_locks(scheduler, list(requests.values()), NEXT)
    check_row_entries(scheduler, list(requests.values()), NEXT)


def after_next_batch(plan: Any, scheduler: Any, *args: Any, **kwargs: Any) -> None:
    """Check, behind `Scheduler.get_next_batch_to_run`, where the requests are; 0.5.23 returns a plan."""
    # Before 0.5.23 it returns the batch to run, and the scheduler has the running one.
    batches = getattr(plan, "batch_to_run", plan), getattr(plan, "running_batch", scheduler.running_batch)
    check_not_waiting(scheduler, batches)
    check_none_lost(scheduler, batches)


def after_filter(result: Any, batch: Any, *args: Any, **kwargs: Any) -> None:
    """Check a batch from which requests that have ended are gone; where it was told whom to keep, any may be left."""
    told = bool(args) or kwargs.get("keep_indices") is not None
    after_batch_changes(result, batch, may_have_ended=told)


def after_batch_changes(result: Any, batch: Any, *args: Any, may_have_ended: bool = True, **kwargs: Any) -> None:
    """Check the row numbers of a batch from which requests have gone, or which others have joined."""
    rows = getattr(batch, "req_pool_indices", None)
    if _running is None or _running.scheduler is None or rows is None:
        return
    if check_sizes(_running.scheduler, batch, CHANGED) or len(rows) != len(batch.reqs):
        return
    if check_once(_running.scheduler, batch.reqs, CHANGED):
        return
    check_row_indices(_running.scheduler, rows.tolist(), batch.reqs, CHANGED, lengths=getattr(batch, "seq_lens", None))
    check_retracted(_running.scheduler, rows.tolist(), batch.reqs, CHANGED, may_have_ended=may_have_ended)


def _lengths_of(batch: Any) -> Iterator[tuple[int, int]]:
    """Yield `id` and length of each request of a batch; nothing where it has another number of them."""
    lengths = getattr(batch, "seq_lens", None)
    if lengths is not None and len(lengths) == len(batch.reqs):
        yield from zip(map(id, batch.reqs), lengths.tolist(), strict=True)


def before_run_batch(scheduler: Any, batch: Any, *args: Any, **kwargs: Any) -> None:
    """Remember, before `Scheduler.run_batch`, whose batch it is, for the forwards inside."""
    global _running
    seen = _running = seen_of(scheduler)
    seen.scheduler, seen.batch, seen.ran = scheduler, batch, tuple(batch.reqs or ())
    seen.accepted = None
    check_sizes(scheduler, batch, RUN)
    note_mode(scheduler, batch)


def before_alloc_for_extend(batch: Any, *args: Any, **kwargs: Any) -> None:
    """Check where a prefill's tokens begin and end, before `alloc_for_extend(batch)` asks for their slots."""
    if _chooses is not None:
        check_spans(_chooses, batch)


def after_run_batch(result: Any, scheduler: Any, batch: Any, *args: Any, **kwargs: Any) -> None:
    """Check, after `Scheduler.run_batch`, that the batch has its forward mode still; remember what was sampled."""
    check_mode(scheduler, batch)
    check_taken(scheduler, batch, result)
    note_sampled(scheduler, batch, result)


def before_sample(model_runner: Any, logits_output: Any, forward_batch: Any, *args: Any, **kwargs: Any) -> None:
    """Check the target's logits before `ModelRunner.sample(logits_output, forward_batch)` writes over them."""
    scheduler = None if _running is None else _running.scheduler
    if scheduler is None or _running is None or model_runner.is_draft_worker or forward_batch.forward_mode.is_idle():
        return
    _running.sampling = ()
    requests = _running.batch.reqs if _running.batch is not None else ()
    if len(requests or ()) == len(forward_batch.req_pool_indices) and not check_marked(
        scheduler, requests, BEFORE, forward_batch
    ):
        known = check_logits(scheduler, requests, logits_output.next_token_logits, BEFORE)
        _running.sampling = requests if known else ()


def before_sampler(sampler: Any, logits_output: Any, *args: Any, **kwargs: Any) -> None:
    """Check the logits that `Sampler.forward(logits_output)` is handed, once for each `ModelRunner.sample`."""
    if _running is None or not _running.sampling:
        return
    requests, _running.sampling = _running.sampling, ()
    check_handed(_running.scheduler, requests, logits_output.next_token_logits)


def after_init_new(made: Any, cls: type, batch: Any, model_runner: Any, *args: Any, **kwargs: Any) -> None:
    """Check the forward batch that `ForwardBatch.init_new(batch, model_runner)` returned."""
    mode = made.forward_mode
    if model_runner.is_draft_worker or mode.is_idle() or _running is None or _running.scheduler is None:
        return
    scheduler, requests = _running.scheduler, batch.reqs
    # Of a forward that is not looked at to its end nobody knows what it stores, nor where its tokens stand.
    forget_texts(scheduler, made)
    forget_written(scheduler, made)
    _running.spans = {}
    if not requests or len(requests) != len(made.req_pool_indices):
        return
    rows = made.req_pool_indices.tolist()
    wanted = [held(request).req_pool_idx for request in requests]
    check_row_indices(scheduler, rows, requests, INIT, made)
    pairs = enumerate(zip(rows, wanted, strict=True))
    released = [WrongEntry("released", number, 0, row) for number, (row, slot) in pairs if slot is None]
    if released and not scheduler.enable_overlap:
        kinds = [Defect.STALE] * len(released)
        had = is_free(scheduler, released[0].value)
        report_wrong(scheduler, released, ROW_INDEX, INIT, Structure.ROW_INDICES, kinds, made, rows, had=had)
        return
    if (
        check_begins(scheduler, requests, made)
        or check_members(scheduler, requests, made)
        or check_read_once(scheduler, requests, made)
    ):
        return
    note_spans(scheduler, requests, made)
    note_texts(scheduler, requests, made)
    check_prefixes(scheduler, requests, made)
    if check_something_new(scheduler, requests, made):
        return
    check_lengths(scheduler, batch, made)
    check_positions(scheduler, requests, made)
    of_prefill = mode.is_extend() and not mode.is_target_verify()
    if of_prefill:
        note_chunk(scheduler, requests)
    check_whole_pages(scheduler, requests, made)
    check_none_gone_yet(scheduler, requests, made)
    note_counts(_running, requests, of_prefill, scheduler.enable_overlap, made.seq_lens.tolist())
    check_row_entries(scheduler, requests, INIT, made)
    check_reserved(scheduler, requests, made)
    check_window(scheduler, requests, made)
    check_writes(scheduler, requests, made)
    check_locks(scheduler, requests, INIT, made)
    check_input_tokens(scheduler, requests, made)
    check_prompt_tokens(scheduler, requests, made)
    check_sampling(scheduler, requests, made)
    if mode.is_decode():
        # What goes on now is not what a verification gave.
        _running.sampled = None
    spans = spans_of(made)
    if not check_kept(scheduler, requests, made, spans):
        mark_new_slots(scheduler, requests, made, spans)


def before_trtllm_metadata(backend: Any, forward_batch: Any, *args: Any, **kwargs: Any) -> None:
    """Check whose rows `TRTLLMHAAttnBackend.init_forward_metadata(forward_batch)` is about to follow."""
    _check_rows_to_follow(backend, forward_batch, METADATA)


def before_triton_metadata(backend: Any, forward_batch: Any, *args: Any, **kwargs: Any) -> None:
    """Check whose rows `TritonAttnBackend.init_forward_metadata(forward_batch)` is about to follow."""
    _check_rows_to_follow(backend, forward_batch, LISTS)


def _check_rows_to_follow(backend: Any, forward_batch: Any, site: str) -> None:
    """Hold a batch's row numbers against its requests once more: a draft's are its own, and any may change since."""
    if forward_batch.forward_mode.is_idle() or _running is None or _running.scheduler is None:
        return
    requests, rows = _running.batch.reqs, forward_batch.req_pool_indices.tolist()
    # A draft that follows several branches has each request as often as that.
    if not requests or not rows or len(rows) % len(requests):
        return
    requests = [request for request in requests for _ in range(len(rows) // len(requests))]
    check_row_indices(_running.scheduler, rows, requests, site, forward_batch, role_of(backend))
    check_retracted(_running.scheduler, rows, requests, site, forward_batch, role_of(backend))


def after_trtllm_metadata(result: Any, backend: Any, forward_batch: Any, *args: Any, **kwargs: Any) -> None:
    """Check what `TRTLLMHAAttnBackend.init_forward_metadata(forward_batch)` made: lengths, tables, sliding writes."""
    if forward_batch.forward_mode.is_idle() or _running is None or _running.scheduler is None:
        return
    scheduler = _running.scheduler
    if role_of(backend) == "draft":
        check_draft_lengths(_running, forward_batch, METADATA)
        made = backend.forward_metadata
        _running.planned = (forward_batch, made, forward_batch.seq_lens.tolist(), int(scheduler.forward_ct))
    expected = _lengths_to_be_given(scheduler, backend, forward_batch)
    given = backend.forward_metadata.cache_seqlens_int32.tolist()
    rows = forward_batch.req_pool_indices.tolist()
    if wrong := check_values(given, expected):
        width = scheduler.req_to_token_pool.req_to_token.shape[1]
        before = [{_running.lengths[row]} if row in _running.lengths else () for row in rows]
        kinds = [defect_of(w.value, w.expected, width + 1, foreign=set(expected), free=before[w.row]) for w in wrong]
        kinds = or_swapped(wrong, kinds)
        report_wrong(scheduler, wrong, LENGTH, METADATA, Structure.KERNEL_LENGTHS, kinds, forward_batch, rows)
    _running.lengths = dict(zip(rows, given, strict=False))
    if role_of(backend) != "draft":
        check_bounds(scheduler, backend.forward_metadata, forward_batch, rows, expected)
    check_tables(scheduler, backend, forward_batch, rows, expected)
    check_swa_writes(scheduler, backend, forward_batch, METADATA)


def _lengths_to_be_given(scheduler: Any, backend: Any, forward_batch: Any) -> list[int]:
    """Return the keys of each row that a kernel is to read; a draft that writes none reads what the target has.

    Its metadata is made without the spec input, by which a draft that writes keys counts those as well.
    """
    mode = forward_batch.forward_mode
    if role_of(backend) == "draft" and mode.is_decode() and scheduler.spec_algorithm.is_frozen_kv_mtp():
        return forward_batch.seq_lens.tolist()
    return believed_lengths(backend, forward_batch).tolist()


def after_triton_metadata(result: Any, backend: Any, forward_batch: Any, *args: Any, **kwargs: Any) -> None:
    """Check what `TritonAttnBackend.init_forward_metadata(forward_batch)` made: lists of slots, sliding writes."""
    if (
        forward_batch.forward_mode.is_idle()
        or _running is None
        or _running.scheduler is None
        or not has_lists_of_its_own(forward_batch)
    ):
        return
    check_lists(_running.scheduler, backend, forward_batch)
    check_swa_writes(_running.scheduler, backend, forward_batch, LISTS)


def after_set_positions(result: Any, worker: Any, forward_batch: Any, *args: Any, **kwargs: Any) -> None:
    """Check a frozen draft's rows, lengths, and the positions that its worker has just set, outside of a capture."""
    if forward_batch.forward_mode.is_idle() or _running is None or _running.scheduler is None:
        return
    if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
        return
    scheduler, batch = _running.scheduler, _running.batch
    if len(batch.reqs) == len(forward_batch.seq_lens):
        # Positions are set anew for each step of one draft, which looks its pages up once, at the first.
        if _running.draft is not forward_batch:
            slots = forward_batch.req_pool_indices.tolist()
            _running.drafted = _running.draft_lengths
            _running.draft_lengths = dict(zip(slots, forward_batch.seq_lens.tolist(), strict=False))
            if len(slots) == len(batch.reqs):
                # Rows may have been written by them already.
                check_row_indices(scheduler, slots, batch.reqs, DRAFT_POSITIONS, forward_batch, "draft")
            check_row_entries(scheduler, batch.reqs, DRAFT_POSITIONS, forward_batch, "draft")
            check_hidden(scheduler, batch.reqs, forward_batch)
        else:
            check_draft_plan(_running, getattr(worker, "draft_attn_backend", None), forward_batch)
        _running.draft = forward_batch
        check_lengths(scheduler, batch, forward_batch, in_draft=True)
    check_draft_positions(scheduler, forward_batch)


def around_insert(original: Callable[..., Any], cache: Any, params: Any, *args: Any, **kwargs: Any) -> Any:
    """Run around 0.5.23's `UnifiedRadixCache.insert(params)`."""
    insert = partial(original, cache, params, *args, **kwargs)
    scheduler = None if _running is None else _running.scheduler
    return check_insert(scheduler, cache, params, insert) if can_be_held(scheduler, cache, params) else insert()


def after_sample(
    result: Any,
    verify_input: Any,
    batch: Any,
    logits_output: Any,
    *args: Any,
    watermark_state: Any = None,
    **kwargs: Any,
) -> None:
    """Check how many drafts 0.5.23's `eagle_sample(verify_input, batch, logits_output)` took of each request.

    Left out where SGLang was told how many to take, and where a watermark chooses tokens. Before, its logits.
    """
    scheduler = None if _running is None else _running.scheduler
    if scheduler is None or batch.forward_mode.is_idle():
        return
    if not check_marked(scheduler, batch.reqs, SAMPLE):
        check_logits(scheduler, batch.reqs, logits_output.next_token_logits, SAMPLE)
    told = watermark_state is not None or envs.SGLANG_SIMULATE_ACC_LEN.get() > 0
    if not told and len(result[1]) == len(batch.reqs):
        check_accepted(scheduler, verify_input, batch, logits_output.next_token_logits, result)


def self_test() -> None:
    """Fire on one planted row of each kind, stay silent on a clean one. Pages of 4 tokens.

    Raises:
        VerificationFailed: the check no longer tells them apart.
    """
    clean = np.array([8, 9, 10, 11, 20, 21])
    owners = np.full(8, NO_ROW)
    owners[[2, 5]] = 1

    def found(entries: np.ndarray, **more: Any) -> list[str]:
        return sorted({wrong.why for wrong in check_rows([Row(1, entries, **more)], 4, 32)})

    cases = {
        "clean": found(clean, before=clean, owners=owners),
        "changed": found(clean, before=clean[::-1]),
        "prefix": found(clean, protected=4, prefix=clean[:4] + 4),
        "moved": found(np.array([20, 21, 22, 23, 8, 9]), earlier=np.array([8, 9, 10, 11, 20, 21])),
        "outside": found(np.append(clean, 32)),
        "misplaced": found(clean[::-1]),
        "twice": found(np.array([8, 9, 10, 11, 8, 9])),
        "owner": found(np.array([8, 9, 10, 11, 24]), owners=owners),
        "shared": [wrong.why for wrong in check_rows([Row(1, clean), Row(2, clean)], 4, 32)][:1],
        "given back": [wrong.why for wrong in check_path(clean, clean, np.array([5]), 4)],
    }
    for case, whys in cases.items():
        if whys != ([] if case == "clean" else [case]):
            raise VerificationFailed(f"{RULE}: self test: {case}: {whys}")
