"""What `request-rows` asks of counts: lengths of a batch, and what each request counts, fit its tokens and nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gemma4_dumps.structures import Defect, Structure
from gemma4_runtime.checks.request_rows import WrongEntry
from gemma4_runtime.defects import defect_of
from gemma4_runtime.release.prefix_caches import (
    is_locked_elsewhere,
    path_length,
    paths_of,
    retain_window,
    unreadable_cache,
)
from gemma4_runtime.release.requests import (
    COMMITS_WHAT_IS_ACCEPTED,
    committed_freed,
    held,
    prefilled_until,
    stay_of,
    swa_evicted,
)
from gemma4_runtime.release.tree_links import broken_nodes
from gemma4_runtime.rows.lock_marks import said_of_window_lock, without_window_lock
from gemma4_runtime.rows.report import (
    COUNTER,
    DRAFT_POSITIONS,
    INIT,
    LENGTH,
    LOCK,
    NEXT,
    or_swapped,
    report_wrong,
)
from gemma4_runtime.rows.seen import counts_before, evicted_before, floor_before, launched_at, seen_of

COMMITTED, ALLOCATED, PROTECTED, SWA_EVICTED, SWA_FLOOR = (
    "kv_committed_len",
    "kv_allocated_len",
    "cache_protected_len",
    "swa_evicted_seqlen",
    "swa_evict_floor",
)
"""What a request counts, by the names that SGLang has for it."""
LENGTH_OF, COMMITTED_OF, TOKENS_OF, NONE_OF = "batch", "committed", "tokens", "none"
"""Who gives account of a request's length: its batch, its count, and its tokens. Two that agree outvote the third.

After a verification the count and the tokens come from one list of accepted tokens, and the batch's length does not:
then they outvote it only if it agreed between steps, and so has changed since.
"""
_STEPS_AHEAD = 2
_OF_ACCOUNTS = (
    (LENGTH_OF, Structure.BATCH_LENGTHS),
    (COMMITTED_OF, Structure.REQUEST_COUNTERS),
    (TOKENS_OF, Structure.REQUEST_COUNTERS),
    (NONE_OF, Structure.BATCH_LENGTHS),
)


@dataclass(frozen=True)
class _Waiting:
    """What results that nobody has looked at yet will give a request.

    Attributes:
        tokens: How many.
        lag: By how many of them what it has committed will grow.
        is_known: Whether these numbers are known.
    """

    tokens: int = 0
    lag: int = 0
    is_known: bool = True


_NOTHING, _UNKNOWN = _Waiting(), _Waiting(is_known=False)


def _waiting(scheduler: Any) -> dict[int, _Waiting]:
    """Return by `id` what each request will get: with overlap a step is launched before the results of the last."""
    found: dict[int, _Waiting] = {}
    for batch, result in getattr(scheduler, "result_queue", None) or ():
        for number, request in enumerate(batch.reqs):
            known = id(request) not in found and not any(
                getattr(request, name, None) for name in ("grammar", "beam_group")
            )
            found[id(request)] = _result_of(scheduler, batch, result, number) if known else _UNKNOWN
    return found


def _result_of(scheduler: Any, batch: Any, result: Any, number: int) -> _Waiting:
    """Return what one request of a batch gets: a token, whose place it has taken already, or what is accepted."""
    mode, drafts = batch.forward_mode, not scheduler.spec_algorithm.is_none()
    if mode.is_mixed() or (drafts and not COMMITS_WHAT_IS_ACCEPTED):
        return _UNKNOWN
    of_drafts = drafts and (mode.is_decode() or mode.is_target_verify())
    if not of_drafts:
        return _Waiting(tokens=1) if mode.is_decode() or mode.is_extend() else _UNKNOWN
    accepted = getattr(result, "accept_lens", None)
    if accepted is None or len(accepted) != len(batch.reqs):
        return _UNKNOWN
    if result.copy_done is not None:
        result.copy_done.synchronize()
    return _Waiting(tokens=int(accepted[number]), lag=int(accepted[number]))


def known_tokens(request: Any) -> int:
    """Return how many tokens a request's prompt and answer have."""
    return len(request.origin_input_ids) + len(request.output_ids)


def runs(request: Any) -> bool:
    """Return whether a request has a row, and goes on.

    Args:
        request: A `Req`.
    """
    return held(request).req_pool_idx is not None and not request.finished() and not committed_freed(request)


def check_lengths(scheduler: Any, batch: Any, made: Any, in_draft: bool = False) -> None:
    """Hold the batch's lengths against the tokens and the counters of its requests.

    Args:
        scheduler: Whose requests they are.
        batch: The batch that runs.
        made: The forward's batch.
        in_draft: Whether it is a draft's, whose last token has no KV yet, as in the verification behind it.
    """
    mode, lengths = made.forward_mode, made.seq_lens.tolist()
    of_drafts, overlap = in_draft or mode.is_target_verify(), scheduler.enable_overlap
    waiting = _waiting(scheduler)
    ahead = [waiting.get(id(request), _NOTHING) for request in batch.reqs]
    if of_drafts:
        tokens = [known_tokens(request) + more.tokens - 1 for request, more in zip(batch.reqs, ahead, strict=True)]
    elif mode.is_decode():
        tokens = [known_tokens(request) + more.tokens for request, more in zip(batch.reqs, ahead, strict=True)]
    elif overlap:
        return
    else:
        tokens = [prefilled_until(request) for request in batch.reqs]
    # Between the preparation of a verification and its result.
    claimed = int(of_drafts and overlap and not COMMITS_WHAT_IS_ACCEPTED)
    committed = [
        held(request).kv_committed_len + more.lag - claimed for request, more in zip(batch.reqs, ahead, strict=True)
    ]
    width = scheduler.req_to_token_pool.req_to_token.shape[1]
    rows = [held(request).req_pool_idx for request in batch.reqs]
    accounts = [
        account if more.is_known and runs(request) else (0, 0, 0)
        for request, more, account in zip(batch.reqs, ahead, zip(lengths, committed, tokens, strict=True), strict=True)
    ]
    host = getattr(batch, "seq_lens_cpu", None)
    if (
        host is not None
        and len(host) == len(accounts)
        and not overlap
        and not in_draft
        and (of_drafts or mode.is_decode())
    ):
        # With overlap the host does not know yet what was accepted.
        behind = [
            WrongEntry("host", row, 0, own, account[0])
            for row, (own, account) in enumerate(zip(host.tolist(), accounts, strict=True))
            if len(set(account)) == 1 and 0 < account[0] != own
        ]
        if behind:
            kinds = [defect_of(w.value, w.expected, width + 1, foreign=set(tokens)) for w in behind]
            kinds, had = or_swapped(behind, kinds), {"as_before": None, "account": LENGTH_OF}
            report_wrong(scheduler, behind, LENGTH, INIT, Structure.BATCH_LENGTHS, kinds, made, rows, had=had)
    for of, structure in _OF_ACCOUNTS:
        wrong = [entry for row, account in enumerate(accounts) if (entry := _outvoted(row, account, of)) is not None]
        if wrong:
            kinds = [defect_of(w.value, w.expected, width + 1, foreign=set(tokens)) for w in wrong]
            alone = of_drafts and of == LENGTH_OF
            first = wrong[0].row
            # What waits to be looked at says of the count and of the tokens how far they will go.
            agreed = id(batch.reqs[first]) in seen_of(scheduler).agreed and not ahead[first].lag if alone else True
            had = {"as_before": None, "account": of, "agreed_before": agreed}
            had |= _launched(scheduler, batch.reqs, wrong) if alone else {}
            had |= {"counter": COMMITTED} if of == COMMITTED_OF else {}
            had |= _of_its_tokens(batch.reqs[first]) if of == TOKENS_OF else {}
            site, role = (DRAFT_POSITIONS, "draft") if in_draft else (INIT, "target")
            kinds = or_swapped(wrong, kinds)
            report_wrong(scheduler, wrong, LENGTH, site, structure, kinds, made, rows, had=had, role=role)


def _launched(scheduler: Any, requests: Sequence[Any], wrong: Sequence[WrongEntry]) -> dict[str, Any]:
    """Return, for a dump, the lengths with which the latest forwards of these requests were launched."""
    seen = seen_of(scheduler)
    lengths = [launched_at(seen, requests[one.row]) for one in wrong]
    known = {} if None in lengths else {"launched": ",".join(map(str, lengths))}
    return known | {"relayed": bool(scheduler.enable_overlap)}


def _outvoted(row: int, account: tuple[int, int, int | None], of: str) -> WrongEntry | None:
    """Return the account `of` of one request's length where the two others agree on another, or where no two agree."""
    length, committed, tokens = account
    differing = {
        LENGTH_OF: (length, committed, committed == tokens),
        COMMITTED_OF: (committed, tokens, length == tokens),
        TOKENS_OF: (tokens, committed, length == committed),
        NONE_OF: (length, tokens, len(set(account)) == 3),
    }
    value, expected, told = differing[of]
    return WrongEntry("unlike", row, 0, value, expected) if told and value != expected else None


def check_counters(scheduler: Any, requests: Sequence[Any], lengths: Mapping[int, int] | None = None) -> None:
    """Hold what each request counts against its row's columns, its nodes, and its tokens; lengths of batches likewise.

    Args:
        scheduler: Whose requests they are.
        requests: Those that run.
        lengths: By `id` of a request, the length that its batch has for it, which tells which of two counts is wrong.
    """
    width = scheduler.req_to_token_pool.req_to_token.shape[1]
    cache = getattr(scheduler.tree_cache, "inner", scheduler.tree_cache)
    live = [r for r in requests if runs(r)]
    wrong, kinds, names, accounts, of_batch, seen = [], [], [], {}, [], seen_of(scheduler)
    waiting = _waiting(scheduler)
    seen.agreed, after_a_forward = set(), bool(seen.counts)
    for number, request in enumerate(live):
        had, before = evicted_before(seen, request), counts_before(seen, request)
        evicted = swa_evicted(request)
        # Tokens leave the window while a decode is prepared, and as a prefill is cached, which with overlap is later:
        # of a request that was in no forward since, it may have been that of an earlier one.
        stayed = before[2] if before is not None else had if after_a_forward and not scheduler.enable_overlap else None
        if evicted is not None and had is not None and evicted < had:
            wrong.append(WrongEntry("fell", number, 0, evicted, had))
            names.append(SWA_EVICTED)
            kinds.append(_count_defect(scheduler, evicted, had, _evicted_of_others(live, request)))
        elif evicted is not None and stayed is not None and evicted != stayed:
            wrong.append(WrongEntry("changed", number, 0, evicted, stayed))
            names.append(SWA_EVICTED)
            kinds.append(_count_defect(scheduler, evicted, stayed, _evicted_of_others(live, request)))
        floor, stood = getattr(held(request), "swa_evict_floor", None), floor_before(seen, request)
        read_again = request is getattr(scheduler, "chunked_req", None)
        if floor is not None and stood is not None and floor != stood and not read_again:
            wrong.append(WrongEntry("changed", number, 0, floor, stood))
            names.append(SWA_FLOOR)
            kinds.append(_count_defect(scheduler, floor, stood, []))
        nodes, protected = path_length(cache, request), held(request).cache_protected_len
        if nodes is not None and protected != nodes:
            others = [held(other).cache_protected_len for other in live if other is not request]
            wrong.append(WrongEntry("unlike", number, 0, protected, nodes))
            names.append(PROTECTED)
            kinds.append(_count_defect(scheduler, protected, nodes, others))
        # The token that was sampled last has no KV yet.
        more, launched = waiting.get(id(request), _NOTHING), launched_at(seen, request)
        committed, tokens = held(request).kv_committed_len, known_tokens(request) + more.tokens - more.lag - 1
        by_batch = launched if more.lag else (lengths or {}).get(id(request))
        # One that was retracted is read again, in chunks if it is long, with the answer that it has so far.
        between_chunks = request is getattr(scheduler, "chunked_req", None)
        if request.output_ids and not between_chunks and more.is_known and committed != tokens:
            others = [held(other).kv_committed_len for other in live if other is not request]
            of = COMMITTED_OF if by_batch in (None, tokens) else TOKENS_OF if by_batch == committed else NONE_OF
            value, expected = (tokens, committed) if of == TOKENS_OF else (committed, tokens)
            accounts[len(wrong)] = of
            wrong.append(WrongEntry("unlike", number, 0, value, expected))
            kinds.append(defect_of(value, expected, width + 1, foreign=set(others)))
            names.append("" if of == TOKENS_OF else COMMITTED)
        allocated = held(request).kv_allocated_len
        if 0 <= allocated < committed:
            # Without drafts the two are alike, with them there may be more allocated.
            too_many = by_batch is not None and by_batch <= allocated
            value, expected = (committed, by_batch) if too_many else (allocated, committed)
            wrong.append(WrongEntry("unlike", number, 0, value, expected))
            kinds.append(defect_of(value, expected, width + 1))
            names.append(COMMITTED if too_many else ALLOCATED)
        elif by_batch == committed == tokens:
            seen.agreed.add(id(request))
        without_drafts = scheduler.spec_algorithm.is_none() and more.is_known
        if by_batch is not None and without_drafts and committed == tokens != by_batch:
            # After a verification count and tokens come from one list, and the next draft is where they are held.
            of_batch.append(WrongEntry("unlike", number, 0, by_batch, committed))
        if before is not None:
            for count, had in _changed(scheduler, before[:2], (committed, allocated)):
                names.append(COMMITTED if count == committed and count != allocated else "")
                wrong.append(WrongEntry("changed", number, 0, count, had))
                kinds.append(defect_of(count, had, width + 1))
        for count in (held(request).kv_committed_len, held(request).kv_allocated_len):
            if not 0 <= count <= width:
                names.append("")
                wrong.append(WrongEntry("outside", number, 0, count))
                kinds.append(defect_of(count, None, width + 1))
    seen.counts.clear()
    if wrong:
        seen.evicted = {}
        slots = [held(request).req_pool_idx for request in live]
        had = {"as_before": None, "account": accounts.get(0)} | ({"counter": names[0]} if names[0] else {})
        if names[0] == SWA_EVICTED and wrong[0].expected is not None:
            had |= slots_left(scheduler, live[wrong[0].row], wrong[0].expected, wrong[0].value)
        if names[0] == PROTECTED:
            had |= broken_nodes(cache)
        if had["account"] == TOKENS_OF:
            had |= _of_its_tokens(live[wrong[0].row])
        report_wrong(scheduler, wrong, COUNTER, NEXT, Structure.REQUEST_COUNTERS, kinds, None, slots, had=had)
    elif of_batch:
        slots = [held(request).req_pool_idx for request in live]
        counts = {held(request).kv_committed_len for request in live}
        kinds = or_swapped(of_batch, [defect_of(w.value, w.expected, width + 1, foreign=counts) for w in of_batch])
        had = {"as_before": None, "account": LENGTH_OF, "agreed_before": True}
        report_wrong(scheduler, of_batch, LENGTH, NEXT, Structure.BATCH_LENGTHS, kinds, None, slots, had=had)


def _evicted_of_others(live: Sequence[Any], request: Any) -> list[int | None]:
    return [swa_evicted(other) for other in live if other is not request]


def slots_left(scheduler: Any, request: Any, begin: int, end: int) -> dict[str, int]:
    """Return, for a dump, how many of a request's own tokens in [begin, end) have slots of the window, and of how many.

    Nothing where one pool is for all layers.
    """
    mapping = getattr(scheduler.token_to_kv_pool_allocator, "full_to_swa_index_mapping", None)
    if mapping is None:
        return {}
    # What the prefix cache has of it is not the request's to give back.
    begin, end = max(begin, held(request).cache_protected_len), min(end, held(request).kv_allocated_len)
    full = scheduler.req_to_token_pool.req_to_token[held(request).req_pool_idx, begin : max(begin, end)].long()
    return {"own_kept": int((mapping[full.to(mapping.device)] > 0).sum()), "own_left": int(full.numel())}


def _of_its_tokens(request: Any) -> dict[str, Any]:
    """Return what a dump says of a request whose tokens are more or fewer than its batch and its own count have."""
    listed = getattr(request, "full_untruncated_fill_ids", None)
    return {
        "listed": None if listed is None else len(listed),
        "again": request.retraction_count,
        "marked": bool(request.is_retracted),
        "prompt": len(request.origin_input_ids),
        "answered": len(request.output_ids),
    }


def check_locks(scheduler: Any, requests: Sequence[Any], site: str, made: Any = None) -> None:
    """Hold what the prefix cache counts as locked against the nodes that these running requests hold, each by a lock.

    A lock that is missing leaves fewer tokens locked than are held, unless other requests hold the same nodes. SGLang
    0.5.23 keeps the lock at the request, and one without is named.
    """
    cache = getattr(scheduler.tree_cache, "inner", scheduler.tree_cache)
    live = [r for r in requests if runs(r)]
    if unreadable_cache(cache):
        return
    paths = {number: path for number, path in enumerate(paths_of(cache, live)) if path is not None and path.numel()}
    if not paths:
        return
    if (changed := _changed_receipt(scheduler, live)) is not None:
        request, part = changed
        slot = held(request).req_pool_idx
        wrong, summary = (WrongEntry("receipt", 0, 0, 1, 0),), f"the receipt of the lock of the request in slot {slot} "
        had, kinds = {"as_before": None}, [None]
        if part is None:
            summary += "has another stamp than as it was locked"
        else:
            left_out = part in _left_out(request.lock)
            summary += f"{'says' if left_out else 'no longer says'} that {part} was left out as it was locked"
            had |= {"lock_part": part, "part_left_out": left_out}
        report_wrong(
            *(scheduler, wrong, LOCK, site, Structure.TREE_LOCK, kinds, made, [slot]), had=had, summary=summary
        )
        return
    if (early := _window_released_early(cache, live)) is not None:
        request, since, window = early
        wrong = (WrongEntry("window unlocked", 0, 0, since, window),)
        slots = [held(request).req_pool_idx]
        had = {"as_before": None, "again": getattr(request, "retraction_count", 0)}
        had |= said_of_window_lock(scheduler, cache, request)
        kind = Defect.LOST if had.get("window_is_locked") and not had["held_by_others"] else Defect.EARLY
        report_wrong(scheduler, wrong, LOCK, site, Structure.TREE_LOCK, [kind], made, slots, had=had)
        return
    if site == NEXT and (request := without_window_lock(cache, live)) is not None:
        wrong, slots = (WrongEntry("window not locked", 0, 0, 0, 1),), [held(request).req_pool_idx]
        had = {"as_before": None}
        report_wrong(scheduler, wrong, LOCK, site, Structure.TREE_LOCK, [Defect.EARLY], made, slots, had=had)
        return
    if (shared := _shared_lock(live)) is not None:
        mine, others = (held(request).req_pool_idx for request in shared)
        # Whose it is, is known where one of them alone has it on another node than its own.
        known = is_locked_elsewhere(shared[0]) and not is_locked_elsewhere(shared[1])
        wrong, had = (WrongEntry("another's lock", 0, 0, others, mine),), {"as_before": None, "whose_is_known": known}
        report_wrong(scheduler, wrong, LOCK, site, Structure.TREE_LOCK, [Defect.FOREIGN], made, [mine], had=had)
        return
    count = getattr(cache, "full_protected_size", None) or cache.protected_size
    locked, needed = int(count()), sum(path.numel() for path in paths.values())
    if locked < needed:
        # Several may hold the same nodes. To look is slow, and torch's own way to is slower.
        needed = np.unique(np.concatenate([path.numpy() for path in paths.values()])).size
    without = next((number for number in paths if getattr(live[number], "lock", live) is None), None)
    if locked < needed:
        value, expected = locked, needed
    elif without is not None:
        # Others have locked its nodes.
        value, expected = 0, paths[without].numel()
    else:
        return
    wrong = (WrongEntry("unlocked", 0, 0, value, expected),)
    slots = [None if without is None else held(live[without]).req_pool_idx]
    kinds = [Defect.EARLY if without is None else Defect.LOST]
    moved = sum(is_locked_elsewhere(live[number]) for number in paths)
    had = {"as_before": None, **({"locked_elsewhere": moved} if moved else {})}
    report_wrong(scheduler, wrong, LOCK, site, Structure.TREE_LOCK, kinds, made, slots, had=had)


def _window_released_early(cache: Any, requests: Sequence[Any]) -> tuple[Any, int, int] | None:
    """Return a request whose window still reaches into its nodes, and is no longer locked there; None if none is.

    With it how many tokens it has behind them, and how many its window has. SGLang gives such a lock back once a
    request has decoded as many as the window has. None before 0.5.23.
    """
    window = retain_window(cache)
    for request in requests:
        lock: Any = getattr(request, "lock", None)
        if window is None or lock is None or not getattr(lock, "swa_released", False):
            continue
        since = known_tokens(request) - held(request).cache_protected_len
        # With overlap the tokens of a step or two are not put to the answer yet.
        if held(request).cache_protected_len > 0 and since + _STEPS_AHEAD < window:
            return request, since, window
    return None


def _changed_receipt(scheduler: Any, requests: Sequence[Any]) -> tuple[Any, str | None] | None:
    """Return a request whose lock is the one that it was, on the same node, and whose receipt has changed since.

    The release of a lock goes up from its node to the one with the receipt's stamp, and passes over the parts that the
    receipt says were left out. With the request the part of which that was changed, None where it is the stamp. None
    before 0.5.23, which has no such locks.
    """
    seen, found = seen_of(scheduler), None
    known, seen.receipts = seen.receipts, {}
    for request in requests:
        lock: Any = getattr(request, "lock", None)
        stamps = getattr(getattr(lock, "receipt", None), "component_lock_uuids", None)
        if lock is None or stamps is None or lock.swa_released:
            continue
        before = known.get(stay_of(request))
        seen.receipts[stay_of(request)] = (lock, lock.node, dict(stamps), _left_out(lock))
        if found is not None or before is None or before[0] is not lock or before[1] != lock.node:
            continue
        parts = sorted(before[3] ^ _left_out(lock))
        if parts or any(stamps.get(part) != stamp for part, stamp in before[2].items()):
            found = request, parts[0] if parts else None
    return found


def _left_out(lock: Any) -> frozenset[str]:
    """Return which of the full pool and the sliding window a lock's receipt says were not locked; others never are."""
    skipped = {part.name for part in getattr(lock.receipt, "skipped_lock_components", ())}
    return frozenset(skipped & {"FULL", "SWA"})


def _shared_lock(requests: Sequence[Any]) -> tuple[Any, Any] | None:
    """Return a request that carries another's lock, and that one; None where each has its own, as before 0.5.23."""
    by_lock: dict[int, list[Any]] = {}
    for request in {id(one): one for one in requests}.values():
        if getattr(request, "lock", None) is not None:
            by_lock.setdefault(id(request.lock), []).append(request)
    for sharing in by_lock.values():
        if len(sharing) > 1:
            # Its own is on the node that it holds.
            first, *others = sorted(sharing, key=is_locked_elsewhere, reverse=True)
            return first, others[-1]
    return None


def _changed(scheduler: Any, before: tuple[int, int], now: tuple[int, int]) -> list[tuple[int, int]]:
    """Return of each count that has changed since before the forward, and must not have, what it is and has to be.

    Both grow before a forward, and after it only with drafts: what was accepted is committed then, and either as much
    is allocated, or what was allocated for the drafts.
    """
    if scheduler.spec_algorithm.is_none():
        return [(count, had) for count, had in zip(now, before, strict=True) if count != had]
    return [] if now[1] in (before[1], now[0]) else [(now[1], max(before[1], now[0]))]


def _count_defect(scheduler: Any, value: int, expected: int, others: Sequence[int | None]) -> Defect | None:
    """Return in which way a count of tokens is wrong, in pages where all of them are whole pages."""
    counts = [value, expected, *(one for one in others if one is not None)]
    unit = scheduler.page_size if not any(one % scheduler.page_size for one in counts) else 1
    end = scheduler.req_to_token_pool.req_to_token.shape[1] // unit + 1
    return defect_of(value // unit, expected // unit, end, foreign={one // unit for one in counts[2:]})
