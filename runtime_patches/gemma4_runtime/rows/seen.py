"""What the checks of `request-rows` had seen of one scheduler's requests when they last looked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gemma4_dumps.structures import Structure
from gemma4_runtime.by_identity import ByIdentity
from gemma4_runtime.release.requests import held, stay_of, swa_evicted


class Seen:
    """What one scheduler's requests had at the check before.

    Attributes:
        rows: By request slot: its stay there, the node of the prefix cache that it held, and its row's entries.
        lost: Whether that was thrown away since the start, so that a request without is not new.
        evicted: By request slot: its stay there, and how many of its first tokens had left the sliding window.
        floors: By request slot, of one that answers: its stay there, and below which token its window stays.
        written: Where the target's forward before this one wrote.
        swa_written: Where its sliding layers did, one slot for each token.
        lengths: What its kernels were told of each request slot.
        tables: By structure and whose forward it was: request slots, and the page table that kernels followed last.
        counts: By request slot: its stay there, and what it counted before its forward as committed, as allocated, and
            as gone from the sliding window; None for the last where a prefill may change it.
        launched: By request slot: its stay there, and the length with which its latest forward was launched.
        prefilled: The request slots of the forward before, if it was a prefill.
        agreed: By `id`, the requests whose batch had the length that they have themselves, at the check between steps.
        batch: The batch that runs.
        ran: The requests of the forward before.
        running: By `id`, the requests that ran as the next batch was to be chosen.
        mode: The forward mode that the batch which runs had before its forward.
        draft: The forward batch of the draft that was looked at last.
        draft_lengths: Its lengths, by request slot, as they were then.
        drafted: The same of the draft before.
        planned: What a draft's metadata was last made of, and what was made: its batch, the metadata, its lengths,
            and the step.
        sampled: Who was in the latest verification, by its stay, and what that gave: tokens, how many, at which places.
        accepted: Who was in the verification of the step that runs, by its stay, how many tokens it took of each, and
            whether the target's logits said so too.
        spans: By request slot, of the forward that runs: from where to where its tokens stand.
        finite: By request slot: its stay there, and up to which of its tokens a forward went whose logits were numbers.
        sampling: The requests of which the target's logits were numbers, until the sampler is handed these.
        answered: By its stay, how many tokens an answer had as its last one was what had been sampled.
        receipts: By its stay: the lock that it carries, on which node, where the lock's window ends, by the stamp
            that its release looks for, and which parts its release passes over.
        namespaces: By `id`, of those that run: the request, and its namespace in the prefix cache as it was first seen.
        answers: By its stay, of the forward before: how long its answer was, and what was sampled for it.
        sent: By a request's number, how many tokens of its answer it counted as sent.
        looked_at: By its stay, how many tokens of its answer were asked whether they end it.
        asked: By its stay, of the forward before: the sampling parameters that a request had as it was first seen.
        chunk: The request whose prompt is read in chunks, its stay, and the tokens of its answer as one was launched.
        stores: Pool, layer and part (keys or values) in which a forward of the target was seen to store something.
        unused: By such a part, how many forwards stored nothing in it, of those where none was seen to.
        before: By such a part, what stands where the forward that runs is to store, of those where none was seen yet.
        marked: The slots that the forward that runs is to write, which are marked.
        scheduler: The scheduler.
    """

    def __init__(self) -> None:
        self.rows: dict[int, tuple[tuple[Any, ...], Any, np.ndarray]] = {}
        self.lost = False
        self.evicted: dict[int, tuple[tuple[Any, ...], int]] = {}
        self.floors: dict[int, tuple[tuple[Any, ...], int]] = {}
        self.written = np.empty(0, np.int64)
        self.swa_written = np.empty(0, np.int64)
        self.lengths: dict[int, int] = {}
        self.tables: dict[tuple[Structure, str | None], tuple[list[int], np.ndarray]] = {}
        self.counts: dict[int, tuple[tuple[Any, ...], int, int, int | None]] = {}
        self.launched: dict[int, tuple[tuple[Any, ...], int]] = {}
        self.prefilled: set[int] = set()
        self.agreed: set[int] = set()
        self.batch: Any = None
        self.ran: tuple[Any, ...] = ()
        self.running: dict[int, Any] = {}
        self.mode: Any = None
        self.draft: Any = None
        self.draft_lengths: dict[int, int] = {}
        self.drafted: dict[int, int] = {}
        self.planned: tuple[Any, Any, list[int], int] | None = None
        self.sampled: tuple[list[tuple[Any, ...]], Any] | None = None
        self.accepted: tuple[list[tuple[Any, ...]], Any, bool] | None = None
        self.spans: dict[int | None, tuple[int, int]] = {}
        self.finite: dict[int, tuple[tuple[Any, ...], int]] = {}
        self.sampling: Sequence[Any] = ()
        self.answered: dict[tuple[Any, ...], int] = {}
        self.receipts: dict[tuple[int, int], tuple[Any, Any, Any, frozenset[str]]] = {}
        self.namespaces: dict[int, tuple[Any, Any]] = {}
        self.answers: dict[tuple[int, int], tuple[int, int]] = {}
        self.sent: dict[int, int] = {}
        self.looked_at: dict[tuple[int, int], int] = {}
        self.asked: dict[tuple[int, int], dict[str, float]] = {}
        self.chunk: tuple[Any, tuple[Any, ...], int] | None = None
        self.stores: set[tuple[str, int, str]] = set()
        self.unused: dict[tuple[str, int, str], int] = {}
        self.before: dict[tuple[str, int, str], Any] = {}
        self.marked: Any = None
        self.scheduler: Any = None


_SEEN: ByIdentity[Seen] = ByIdentity()


def seen_of(scheduler: Any) -> Seen:
    """Return what the checks of this scheduler had seen; nothing yet at its first."""
    return _SEEN.get(scheduler) or _SEEN.put(scheduler, Seen())


def evicted_before(seen: Seen, request: Any) -> int | None:
    """Return how many tokens of a request had left the window when it was last looked at, and note that for now."""
    slot, stay, evicted = held(request).req_pool_idx, stay_of(request), swa_evicted(request)
    known = seen.evicted.get(slot)
    if evicted is not None:
        seen.evicted[slot] = (stay, evicted)
    return known[1] if known is not None and known[0] == stay else None


def floor_before(seen: Seen, request: Any) -> int | None:
    """Return below which token a request's window was not given back when it was last looked at, and note that for now.

    None where that was in its prefill, which may set it, and where there is no such token, as before 0.5.23.
    """
    slot, stay = held(request).req_pool_idx, stay_of(request)
    known = seen.floors.pop(slot, None)
    floor = getattr(held(request), "swa_evict_floor", None)
    if floor is not None and request.output_ids:
        seen.floors[slot] = (stay, floor)
    return known[1] if known is not None and known[0] == stay else None


def note_counts(
    seen: Seen,
    requests: Sequence[Any],
    of_prefill: bool = False,
    overlapped: bool = False,
    lengths: Sequence[int] = (),
) -> None:
    """Note, before a forward, what each request of its batch counts, and with which length it is launched.

    Args:
        seen: What was seen of them.
        requests: Those of the batch.
        of_prefill: Whether it is a prefill, which takes tokens out of the window as its results are looked at.
        overlapped: Whether that is so with the results of the forward before, after this one was launched.
        lengths: Of the forward, one for each request.
    """
    for request, length in zip(requests, lengths, strict=False):
        seen.launched[held(request).req_pool_idx] = (stay_of(request), length)
    lagging = seen.prefilled if overlapped else set()
    seen.prefilled = {held(request).req_pool_idx for request in requests} if of_prefill else set()
    for request in requests:
        record = held(request)
        stay = stay_of(request)
        evicted = None if of_prefill or record.req_pool_idx in lagging else swa_evicted(request)
        counted = (record.kv_committed_len, record.kv_allocated_len, evicted)
        seen.counts[record.req_pool_idx] = (stay, *counted)


def launched_at(seen: Seen, request: Any) -> int | None:
    """Return with which length a request's latest forward was launched, if that was in this stay."""
    known = seen.launched.get(held(request).req_pool_idx)
    return known[1] if known is not None and known[0] == stay_of(request) else None


def slot_before(seen: Seen, request: Any) -> int | None:
    """Return in which request slot a request was when its row was last looked at; None if that is not known."""
    stay = stay_of(request)
    return next((slot for slot, known in seen.rows.items() if known[0] == stay), None)


def counts_before(seen: Seen, request: Any) -> tuple[int, int, int | None] | None:
    """Return what a request counted before its latest forward, if that was in this stay; once for each forward."""
    known = seen.counts.pop(held(request).req_pool_idx, None)
    return known[1:] if known is not None and known[0] == stay_of(request) else None
