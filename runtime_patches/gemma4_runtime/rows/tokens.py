"""What `request-rows` asks of tokens: a forward reads its requests' latest, and drafts are taken that the target has.

No dump names a token: of one that is wrong it says whose it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from gemma4_dumps.structures import Defect, Structure
from gemma4_runtime.checks.accepted_drafts import agreed_in_chain, listed_tokens
from gemma4_runtime.checks.request_rows import WrongEntry
from gemma4_runtime.release.requests import held, prefilled_until, stay_of
from gemma4_runtime.rows.counts import known_tokens, runs
from gemma4_runtime.rows.places import spans_of
from gemma4_runtime.rows.report import INIT, LENGTH, NEXT, RUN, SAMPLE, TOKEN, or_swapped, report_wrong
from gemma4_runtime.rows.seen import launched_at, seen_of

NOBODYS = -1
_INPUTS, _ACCEPTED, _ANSWER = "input tokens", "accepted drafts", "answer's tokens"
_BITS = (8, 16)
_FEWEST_SHIFTED = 3
"""Tokens that are read at other places than theirs, before that is no chance."""


def check_input_tokens(scheduler: Any, requests: Sequence[Any], made: Any) -> None:
    """Hold the token that a decode goes on from, or that a verification begins with, against the request's latest.

    Args:
        scheduler: Whose requests they are.
        requests: Those of the batch.
        made: The forward's batch.
    """
    mode, tokens = made.forward_mode, made.input_ids
    if tokens is None or not (mode.is_decode() or mode.is_target_verify()) or tokens.numel() % len(requests):
        return
    if mode.is_decode() and tokens.numel() != len(requests):
        return
    found = tokens.view(len(requests), -1)[:, 0].tolist()
    latest = [_latest(scheduler, request) if runs(request) else None for request in requests]
    # A token that is not there yet is a negative number in releases before 0.5.17.
    bad = [
        row
        for row, (token, wanted) in enumerate(zip(found, latest, strict=True))
        if wanted is not None and 0 <= token != wanted
    ]
    if not bad:
        return
    slots = [held(request).req_pool_idx for request in requests]
    wrong: list[WrongEntry] = []
    kinds: list[Defect | None] = []
    for row in bad:
        others = [slots[other] for other, token in enumerate(latest) if other != row and token == found[row]]
        earlier = list(requests[row].output_ids)[-2:-1]
        # In place of the tokens stands whose they are.
        wrong.append(WrongEntry("latest", row, 0, others[0] if others else NOBODYS, slots[row]))
        kinds.append(Defect.FOREIGN if others else Defect.STALE if found[row] in earlier else None)
    kinds = or_swapped(wrong, kinds)
    whose = wrong[0].value
    of = "no other request of its batch" if whose == NOBODYS else f"the request in slot {whose}"
    summary = f"the forward reads, of the request in slot {slots[bad[0]]}, another token than its latest: that of {of}"
    had = {"as_before": None, "rows_wrong": len(wrong), **_by_sample(scheduler, requests[bad[0]], found[bad[0]])}
    had |= _as_unfiltered(scheduler, requests, found)
    if (bits := cut_to(found, latest)) is not None:
        had["cut_to_bits"] = bits
    report_wrong(scheduler, wrong, TOKEN, INIT, _INPUTS, kinds, made, slots, had=had, summary=summary)


def cut_to(found: Sequence[int], latest: Sequence[int | None]) -> int | None:
    """Return to how many bits the latest tokens were cut, where that is what every request reads; None if to none.

    Args:
        found: What each request reads.
        latest: The latest of each; None where it is not known.
    """
    known = [(token, wanted) for token, wanted in zip(found, latest, strict=True) if wanted is not None and token >= 0]
    # A token 0 alone is what a buffer has that nobody wrote.
    if not any(token for token, wanted in known if token != wanted):
        return None
    fit = (bits for bits in _BITS if all(token == wanted % (1 << bits) for token, wanted in known))
    return next(fit, None)


def _by_sample(scheduler: Any, request: Any, read: int) -> dict[str, Any]:
    """Return which of the two the verification before gave: the token that a step reads, or the answer's latest.

    `answer_at`: where in its result all tokens stand that the answer ends in, and `answer_begins` where they should.
    """
    stays, given = seen_of(scheduler).sampled or ([], ())
    stay = stay_of(request)
    if stay not in stays:
        return {}
    predicted, lengths, taken = (one.cpu() for one in given)
    row, count = stays.index(stay), int(lengths[stays.index(stay)])
    result = predicted[taken.clamp(0).long()]
    run, answer = result[row, :count].tolist(), list(request.output_ids)[-count:]
    if not run or len(answer) != count or (run[-1] == read) == (run[-1] == answer[-1]):
        return {}
    if run[-1] != read:
        return {"by_sample": "answer"}
    flat, begins = result.flatten().tolist(), row * taken.shape[1]
    places = [at for at in range(len(flat) - count + 1) if flat[at : at + count] == answer]
    known = {"answer_at": places[0], "answer_begins": begins} if len(places) == 1 and places != [begins] else {}
    return {"by_sample": "input", **known}


def _as_unfiltered(scheduler: Any, requests: Sequence[Any], found: Sequence[int]) -> dict[str, int]:
    """Return how many requests have left since the verification before, where its first tokens are what is read.

    Nothing where none has left, or the tokens of those that go on are as well what is read.
    """
    stays, given = seen_of(scheduler).sampled or ([], ())
    now = [stay_of(one) for one in requests]
    if not len(now) < len(stays) or not set(now) <= set(stays):
        return {}
    predicted, lengths, taken = (one.cpu() for one in given)
    lasts = [int(predicted[taken[row, int(count) - 1]]) for row, count in enumerate(lengths) if int(count)]
    if len(lasts) != len(stays) or [lasts[stays.index(stay)] for stay in now] == list(found):
        return {}
    return {"left_before": len(stays) - len(now)} if lasts[: len(found)] == list(found) else {}


def note_chunk(scheduler: Any, requests: Sequence[Any]) -> None:
    """Note, before a prefill, how long the answer of a request is whose prompt it reads in part."""
    request, seen = getattr(scheduler, "chunked_req", None), seen_of(scheduler)
    if request is not None and any(one is request for one in requests):
        stay = stay_of(request)
        if seen.chunk is None or seen.chunk[:2] != (request, stay):
            seen.chunk = (request, stay, len(request.output_ids))


def check_something_new(scheduler: Any, requests: Sequence[Any], made: Any) -> bool:
    """Find requests of a prefill that have no new token in it, and say whether there are any.

    What is sampled for them comes of another's. The cache is never asked for the last token of a prompt. A block of a
    diffusion model may be all there.
    """
    mode = made.forward_mode
    if not mode.is_extend() or mode.is_target_verify() or mode.is_dllm_extend():
        return False
    spans = spans_of(made) or []
    wrong = [WrongEntry("empty", row, 0, stop - start) for row, (start, stop) in enumerate(spans) if stop <= start]
    if not wrong:
        return False
    request = requests[wrong[0].row]
    had = {"as_before": None, "launched": launched_at(seen_of(scheduler), request), "tokens": known_tokens(request)}
    kinds = [Defect.NEGATIVE if one.value < 0 else Defect.ZERO for one in wrong]
    slots = [held(one).req_pool_idx for one in requests]
    report_wrong(scheduler, wrong, LENGTH, INIT, Structure.BATCH_LENGTHS, kinds, made, slots, had=had)
    return True


def check_prompt_tokens(scheduler: Any, requests: Sequence[Any], made: Any) -> None:
    """Hold each token that a prefill reads against its request's prompt and answer, at its place.

    A request with images or embeddings is left out, and what nobody has sampled yet is a negative number in releases
    before 0.5.17. The dump has places, and no token.
    """
    mode, tokens, spans = made.forward_mode, made.input_ids, spans_of(made)
    of_prompts = mode.is_extend() and not mode.is_target_verify() and not mode.is_dllm_extend()
    if (
        not of_prompts
        or tokens is None
        or spans is None
        or (mode.is_mixed() and not scheduler.spec_algorithm.is_none())
    ):
        return
    if tokens.numel() != sum(stop - start for start, stop in spans):
        return
    found, at = tokens.cpu().numpy(), 0
    wanted = np.full(found.shape, NOBODYS, dtype=np.int64)
    for request, (start, stop) in zip(requests, spans, strict=True):
        own = own_tokens(scheduler, request, start, stop)
        wanted[at : at + own.size] = own
        at += stop - start
    bad = np.flatnonzero((wanted != NOBODYS) & (found >= 0) & (found != wanted))
    if not bad.size:
        return
    begins = np.cumsum([0, *(stop - start for start, stop in spans)])
    rows = np.searchsorted(begins, bad, side="right") - 1
    slots = [held(one).req_pool_idx for one in requests]
    wrong = [WrongEntry("prompt", int(row), 0, NOBODYS, slots[row]) for row in sorted(set(rows.tolist()))]
    row, place = int(rows[0]), int(spans[rows[0]][0] + bad[0] - begins[rows[0]])
    # All the batch's tokens, at other places than theirs.
    moved = bool((wanted != NOBODYS).all()) and np.array_equal(np.sort(found), np.sort(wanted))
    had = {"as_before": None, "rows_wrong": len(wrong), "tokens_wrong": int(bad.size), "place": place, "moved": moved}
    read = found[begins[row] : begins[row + 1]]
    had |= _as_read(requests[row], spans[row], read, place, scheduler.page_size)
    had["prompt"] = len(requests[row].origin_input_ids)
    answered = seen_of(scheduler).answered.get(stay_of(requests[row]))
    if answered is not None and place == had["prompt"] + answered - 1:
        # Between the steps it was what the forward before had sampled.
        had["by_sample"] = "answer"
    summary = f"the prefill reads another token than token {place} of the request in slot {slots[row]}"
    kinds = [Defect.SWAPPED if moved else None] * len(wrong)
    report_wrong(scheduler, wrong, TOKEN, INIT, _INPUTS, kinds, made, slots, had=had, summary=summary)


def _as_read(request: Any, span: tuple[int, int], read: np.ndarray, place: int, page: int) -> dict[str, Any]:
    """Return what else a request has where a prefill reads another token than its own at a place.

    `by_fill`: whose side the list takes by which prompts are read; `shift`: by how many places what is read stands
    behind its own, where all of it does.
    """
    start, stop = span
    own = [*request.origin_input_ids, *request.output_ids]
    known: dict[str, Any] = {}
    if place < len(own) and (side := side_of_fill(request, place, own[place], int(read[place - start]))) is not None:
        known["by_fill"] = side
    shifts = (by for by in range(-page, page + 1) if by and start + by >= 0)
    shift = next((by for by in shifts if own[start + by : stop + by] == read.tolist()), None)
    return known | ({} if shift is None or len(read) < _FEWEST_SHIFTED else {"shift": shift})


def side_of_fill(request: Any, place: int, own: int, read: int) -> str | None:
    """Return which token the list has by which a prompt is matched and read: "own", "read" or "neither"; None: no such.

    Args:
        request: A `Req`.
        place: Which of its tokens.
        own: The one that its prompt or answer has there.
        read: The other one.
    """
    fill = getattr(request, "full_untruncated_fill_ids", None)
    fill = getattr(request, "fill_ids", None) if fill is None else fill
    if fill is None or place >= len(fill):
        return None
    return {own: "own", read: "read"}.get(fill[place], "neither")


def has_other_inputs(request: Any) -> bool:
    """Return whether a request's tokens stand for something else, or are one of several answers'."""
    others = ("multimodal_inputs", "input_embeds", "positional_embed_overrides", "beam_group")
    return any(getattr(request, name, None) is not None for name in others)


def own_tokens(scheduler: Any, request: Any, start: int, stop: int) -> np.ndarray:
    """Return a request's tokens from `start` until `stop`, as far as they are known: none of one with other inputs."""
    if has_other_inputs(request):
        return np.zeros(0, dtype=np.int64)
    prompt, answer = request.origin_input_ids, request.output_ids
    own = [*prompt[start:stop], *answer[max(start - len(prompt), 0) : max(stop - len(prompt), 0)]]
    if len(own) == stop - start - 1 and (latest := _latest(scheduler, request)) is not None:
        own.append(latest)
    return np.asarray(own, dtype=np.int64)


def check_chunk(scheduler: Any) -> None:
    """Find an answer that has grown while a prompt is read: what the model says behind a chunk is nobody's token.

    The last chunk is no longer the scheduler's; with overlap its result waits in the queue before it gives a token.
    """
    seen = seen_of(scheduler)
    if seen.chunk is None:
        return
    request, stay, count = seen.chunk
    waits = any(
        one is request and _reads_a_prompt(batch, number)
        for batch, _ in getattr(scheduler, "result_queue", None) or ()
        for number, one in enumerate(batch.reqs)
    )
    between = request is getattr(scheduler, "chunked_req", None) or waits
    if not between or request.finished() or stay != stay_of(request):
        seen.chunk = None
        return
    grown = len(request.output_ids)
    if grown <= count:
        return
    slot = held(request).req_pool_idx
    summary = f"the answer of the request in slot {slot} has {grown} tokens while its prompt is read, and had {count}"
    had = {"as_before": None, "read": prefilled_until(request), "prompt": len(request.origin_input_ids)}
    wrong = (WrongEntry("chunk", 0, 0, grown, count),)
    kinds = [Defect.OFF_BY_ONE if grown == count + 1 else None]
    report_wrong(scheduler, wrong, TOKEN, NEXT, _ANSWER, kinds, None, [slot], had=had, summary=summary)


def _reads_a_prompt(batch: Any, number: int) -> bool:
    """Return whether a batch is known to read a part of a request's prompt, and not a token of its answer.

    Requests that decode go through a prefill's forward too: mixed into one, or where another rank of data parallelism
    has one.
    """
    mode, counts = batch.forward_mode, getattr(batch, "extend_lens", None)
    if not mode.is_extend() or mode.is_target_verify() or mode.is_mixed():
        return False
    return counts is None or len(counts) <= number or int(counts[number]) != 1


def _latest(scheduler: Any, request: Any) -> int | None:
    """Return a request's latest token, which with overlap waits in a result; None where that is not known."""
    waiting = [
        (result, number, len(batch.reqs))
        for batch, result in getattr(scheduler, "result_queue", None) or ()
        for number, one in enumerate(batch.reqs)
        if one is request
    ]
    if len(waiting) > 1 or any(getattr(request, name, None) for name in ("grammar", "beam_group")):
        return None
    if not waiting:
        return int(request.output_ids[-1]) if request.output_ids else None
    ((result, number, count),) = waiting
    tokens, accepted = getattr(result, "next_token_ids", None), getattr(result, "accept_lens", None)
    if tokens is None or len(tokens) % count:
        return None
    if result.copy_done is not None:
        result.copy_done.synchronize()
    each = len(tokens) // count
    if accepted is None:
        return int(tokens[number]) if each == 1 else None
    return int(tokens[number * each + int(accepted[number]) - 1])


def check_accepted(scheduler: Any, verified: Any, batch: Any, logits: Any, result: Any) -> None:
    """Hold how many drafts were taken of each request against what the target has behind the token before each.

    Where requests are sampled, or drafts branch, only against the drafts that the verification says it took.

    Args:
        scheduler: Whose requests they are.
        verified: The `EagleVerifyInput`: the drafts.
        batch: The batch that was verified.
        logits: [tokens, vocabulary] of the target, with whatever was added to them.
        result: What 0.5.23's `eagle_sample` returned: tokens, accept lengths and which tokens were taken.
    """
    seen_of(scheduler).sampled = ([stay_of(one) for one in batch.reqs], result)
    _, lengths, taken = result
    found, listed = lengths.tolist(), listed_tokens(taken.cpu().numpy()).tolist()
    # Ranks may have other logits on ROCm, where the first one's choice is what counts.
    by_logits = batch.sampling_info.is_all_greedy and verified.tree_topk == 1 and torch.version.hip is None
    agreed = listed
    if by_logits:
        shape = (len(found), -1)
        drafts, predicted = verified.draft_token.cpu().numpy(), logits.argmax(-1).cpu().numpy()
        agreed = agreed_in_chain(drafts.reshape(shape), predicted.reshape(shape)).clip(max=taken.shape[1]).tolist()
    wrong = [
        WrongEntry("agreed", row, 0, counted if counted != wanted else said, wanted)
        for row, (counted, said, wanted) in enumerate(zip(found, listed, agreed, strict=True))
        if not counted == said == wanted
    ]
    if not wrong:
        # What others write over it stands in the result's own list.
        seen_of(scheduler).accepted = ([stay_of(one) for one in batch.reqs], found, by_logits)
        return
    first, slots = wrong[0], [held(request).req_pool_idx for request in batch.reqs]
    summary = f"the verification takes {first.value} tokens of the request in slot {slots[first.row]}, and the target "
    summary += f"agreed to {first.expected}"
    kinds = [Defect.OFF_BY_ONE if abs(one.value - (one.expected or 0)) == 1 else None for one in wrong]
    had = {"as_before": None, "by_logits": by_logits, "rows_wrong": len(wrong)}
    report_wrong(scheduler, wrong, TOKEN, SAMPLE, _ACCEPTED, kinds, None, slots, had=had, summary=summary)


def check_taken(scheduler: Any, batch: Any, result: Any) -> None:
    """Hold how many tokens a step gives each request against what its verification took, before answers get them.

    Args:
        scheduler: Whose batch it is.
        batch: That was run.
        result: What `Scheduler.run_batch` returned for it.
    """
    (known, seen_of(scheduler).accepted) = seen_of(scheduler).accepted, None
    given = getattr(result, "accept_lens", None)
    if known is None or given is None or [stay_of(one) for one in batch.reqs or ()] != known[0]:
        return
    if result.copy_done is not None:
        result.copy_done.synchronize()
    _, took, by_logits = known
    found = given.tolist()
    if len(found) != len(took):
        return
    wrong = [
        WrongEntry("agreed", row, 0, count, wanted)
        for row, (count, wanted) in enumerate(zip(found, took, strict=True))
        if count != wanted
    ]
    if not wrong:
        return
    first, slots = wrong[0], [held(request).req_pool_idx for request in batch.reqs]
    summary = f"the step gives the request in slot {slots[first.row]} {first.value} tokens, and its verification took "
    summary += f"{first.expected}"
    kinds = [Defect.OFF_BY_ONE if abs(one.value - (one.expected or 0)) == 1 else None for one in wrong]
    had = {"as_before": None, "by_logits": by_logits, "rows_wrong": len(wrong), "since_verified": True}
    report_wrong(scheduler, wrong, TOKEN, RUN, _ACCEPTED, kinds, None, slots, had=had, summary=summary)
