"""What `request-rows` asks of where things begin in a forward: a prefill's new tokens, queries and keys."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from gemma4_dumps.structures import Defect, Structure
from gemma4_runtime.checks.request_rows import WrongEntry
from gemma4_runtime.defects import defect_of
from gemma4_runtime.release.prefix_caches import path_length, unreadable_cache
from gemma4_runtime.release.requests import held, prefilled_until, prefix_length
from gemma4_runtime.rows.counts import LENGTH_OF, known_tokens
from gemma4_runtime.rows.report import EXTEND, INIT, LENGTH, METADATA, or_swapped, report_wrong
from gemma4_runtime.rows.seen import launched_at, seen_of

_QUERIES, _KEYS = "cu_seqlens_q", "cu_seqlens_k"


def check_begins(scheduler: Any, requests: Sequence[Any], made: Any) -> bool:
    """Hold where a prefill's new tokens begin (prefix_lens) against their lengths, and say whether one is wrong.

    Its positions, and the slots that it writes, are counted from there.
    """
    mode = made.forward_mode
    if not mode.is_extend() or mode.is_target_verify() or len(made.seq_lens) != len(requests):
        return False
    lengths, sizes = made.seq_lens.tolist(), list(map(int, made.extend_seq_lens_cpu))
    begins = list(map(int, made.extend_prefix_lens_cpu))
    if not len(begins) == len(sizes) == len(lengths):
        return False
    expected = [length - size for length, size in zip(lengths, sizes, strict=True)]
    wrong = [
        WrongEntry("begin", row, 0, value, wanted)
        for row, (value, wanted) in enumerate(zip(begins, expected, strict=True))
        if value != wanted
    ]
    if not wrong:
        return False
    width = scheduler.req_to_token_pool.req_to_token.shape[1]
    slots = [held(request).req_pool_idx for request in requests]
    ends = {one.row: begins[one.row] + sizes[one.row] for one in wrong}
    if all(prefilled_until(requests[row]) == end for row, end in ends.items()):
        # Where it begins and what is new come to what the request itself counts, so that the length is what differs.
        wrong = [WrongEntry("unlike", row, 0, lengths[row], end) for row, end in ends.items()]
        others = set(lengths) - {one.value for one in wrong} | set(ends.values())
        kinds = or_swapped(wrong, [defect_of(w.value, w.expected, width + 1, foreign=others) for w in wrong])
        had = {"as_before": None, "account": LENGTH_OF, "agreed_before": True}
        report_wrong(scheduler, wrong, LENGTH, INIT, Structure.BATCH_LENGTHS, kinds, made, slots, had=had)
        return True
    own = [_is_its_own(requests[one.row], one.value, lengths[one.row]) for one in wrong]
    # What begins before its sequence does is longer than it can be.
    if False not in own and (None not in own or any((one.expected or 0) < 0 for one in wrong)):
        right = [length - begin for length, begin in zip(lengths, begins, strict=True)]
        wrong = [WrongEntry("size", one.row, 0, sizes[one.row], right[one.row]) for one in wrong]
        kinds = or_swapped(wrong, [defect_of(w.value, w.expected, width + 1, foreign=set(right)) for w in wrong])
        had = {"as_before": None, "begin": begins[wrong[0].row], "length": lengths[wrong[0].row]}
        report_wrong(scheduler, wrong, LENGTH, INIT, Structure.BATCH_LENGTHS, kinds, made, slots, had=had)
        return True
    kinds = or_swapped(wrong, [defect_of(w.value, w.expected, width + 1, foreign=set(expected)) for w in wrong])
    first = wrong[0].row
    tokens = None if made.input_ids is None else int(made.input_ids.numel())
    agree = tokens == sum(sizes) and prefilled_until(requests[first]) == lengths[first]
    # What the request itself has of where they begin.
    own = getattr(requests[first], "prefix_indices", None)
    agree = agree and (own is None or len(own) == expected[first])
    had = {"as_before": None, "new_tokens": sizes[first], "length": lengths[first], "agreed_before": agree}
    report_wrong(scheduler, wrong, LENGTH, INIT, Structure.BATCH_LENGTHS, kinds, made, slots, had=had)
    return True


def check_spans(scheduler: Any, batch: Any) -> bool:
    """Hold where a prefill's new tokens begin and end against its requests, before slots are asked for them.

    A request goes on where its slots end, and one without any where its nodes of the prefix cache do; tokens that are
    passed over have no slots, and nobody computes them. What begins earlier is looked at once it has its slots.

    Args:
        scheduler: Whose batch it is.
        batch: A `ScheduleBatch`, as `alloc_for_extend` is given it.

    Returns:
        Whether one is wrong.
    """
    requests, begins, sizes = batch.reqs, getattr(batch, "prefix_lens", None), getattr(batch, "extend_lens", None)
    mode = getattr(batch, "forward_mode", None)
    if not requests or begins is None or sizes is None or mode is None or mode.is_dllm_extend():
        return False
    if not len(begins) == len(sizes) == len(requests):
        return False
    wrong: list[WrongEntry] = []
    for row, (request, begin, size) in enumerate(zip(requests, map(int, begins), map(int, sizes), strict=True)):
        has, tokens = _slots_of(scheduler, request), known_tokens(request)
        if has is not None and begin > has:
            wrong.append(WrongEntry("passed over", row, 0, begin, has))
        elif begin + size > tokens:
            wrong.append(WrongEntry("behind its text", row, 0, begin + size, tokens))
    if not wrong:
        return False
    first = wrong[0]
    request, slots = requests[first.row], [held(one).req_pool_idx for one in requests]
    own = prefix_length(request) if first.why == "passed over" else prefilled_until(request)
    structure = Structure.REQUEST_COUNTERS if own == first.value else Structure.BATCH_LENGTHS
    had = {
        "as_before": None,
        "chunked": request is getattr(scheduler, "chunked_req", None),
        "begin": int(begins[first.row]),
        "prompt": len(request.origin_input_ids),
        "from_cache": slots[first.row] is None,
    }
    kinds = [Defect.OFF_BY_ONE if one.value - (one.expected or 0) == 1 else None for one in wrong]
    report_wrong(scheduler, wrong, LENGTH, EXTEND, structure, kinds, None, slots, had=had)
    return True


def _slots_of(scheduler: Any, request: Any) -> int | None:
    """Return for how many of its first tokens a request has slots, of its own or of the prefix cache; None: unknown."""
    if held(request).req_pool_idx is not None:
        return held(request).kv_allocated_len
    cache = getattr(scheduler.tree_cache, "inner", scheduler.tree_cache)
    return None if unreadable_cache(cache) else path_length(cache, request)


def check_read_once(scheduler: Any, requests: Sequence[Any], made: Any) -> bool:
    """Find requests of which a prefill reads tokens that have keys and values already, and say whether there is one.

    A prompt that is read in chunks goes on where the last one ended, and so does who decodes beside a prefill. Tokens
    that are read again get slots again, and nobody has those that they had.
    """
    mode, seen = made.forward_mode, seen_of(scheduler)
    if not mode.is_extend() or mode.is_target_verify() or len(made.extend_prefix_lens_cpu) != len(requests):
        return False
    begins = list(map(int, made.extend_prefix_lens_cpu))
    # Another request may come by the same name.
    ended = [launched_at(seen, one) if id(one) in seen.running else None for one in requests]
    wrong = [
        WrongEntry("again", row, 0, begin, end)
        for row, (begin, end) in enumerate(zip(begins, ended, strict=True))
        if end is not None and begin < end
    ]
    if not wrong:
        return False
    first, slots = wrong[0], [held(request).req_pool_idx for request in requests]
    own, answered = prefix_length(requests[first.row]), len(requests[first.row].output_ids)
    structure = Structure.REQUEST_COUNTERS if own == first.value else Structure.BATCH_LENGTHS
    had = {"as_before": None, "answered": answered}
    report_wrong(scheduler, wrong, LENGTH, INIT, structure, [None] * len(wrong), made, slots, had=had)
    return True


def _is_its_own(request: Any, begin: int, length: int) -> bool | None:
    """Return whether a request itself begins there and ends so, so that neither is what differs; None if it may."""
    own = getattr(request, "prefix_indices", None)
    if prefilled_until(request) != length or (own is not None and len(own) != begin):
        return False
    return True if own is not None else None


def check_bounds(
    scheduler: Any, metadata: Any, forward_batch: Any, rows: Sequence[int], lengths: Sequence[int]
) -> None:
    """Hold where each request's queries and keys end, by trtllm_mha's metadata of a target's forward, against lengths.

    Args:
        scheduler: Whose requests they are.
        metadata: `TRTLLMMHAMetadata`.
        forward_batch: The forward's batch.
        rows: Request slot of each request.
        lengths: Keys of each that a kernel is to read.
    """
    mode = forward_batch.forward_mode
    if getattr(metadata, "is_ragged_verify", False):
        return
    if mode.is_decode():
        queries = [1] * len(lengths)
    elif mode.is_target_verify():
        queries = [forward_batch.input_ids.shape[0] // len(lengths)] * len(lengths)
    else:
        queries = list(map(int, forward_batch.extend_seq_lens_cpu))
    for name, sizes in ((_QUERIES, queries), (_KEYS, lengths)):
        bounds = getattr(metadata, name, None)
        if bounds is None or len(bounds) != len(sizes) + 1:
            continue
        expected = [0, *accumulate(sizes)]
        # A bound is where the request before it ends.
        wrong = [
            WrongEntry(name, max(at - 1, 0), 0, value, wanted)
            for at, (value, wanted) in enumerate(zip(bounds.tolist(), expected, strict=True))
            if value != wanted
        ]
        if wrong:
            end, known = expected[-1] + 1, set(expected)
            kinds = or_swapped(wrong, [defect_of(w.value, w.expected, end, foreign=known) for w in wrong])
            had = {"as_before": None, "queries": ",".join(map(str, queries))}
            structure = Structure.KERNEL_LENGTHS
            report_wrong(scheduler, wrong, LENGTH, METADATA, structure, kinds, forward_batch, rows, had=had)
            return
