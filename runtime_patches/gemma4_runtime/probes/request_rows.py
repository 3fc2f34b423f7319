"""Probe `request-rows`: what a batch believes of its requests is what they say, before SGLang indexes with it.

| hook                                | what is held against what                                                      |
|-------------------------------------|--------------------------------------------------------------------------------|
| before get_next_batch_to_run        | the rows of all running requests: see checks/request_rows.py; what a request   |
|                                     | counts against its row's width, and against the nodes that it holds            |
| after ForwardBatch.init_new, target | row numbers and lengths against the requests; rows; each slot that the forward |
|                                     | will write against the row's entry of that token, with and without MTP         |
| after trtllm_mha's metadata         | the lengths that the kernel is given against those of the batch; each page of  |
|                                     | a table against the request's row, and what the map makes of it                |

An entry counts as changed if the request was not retracted since the check before and holds the same nodes of the
prefix cache as then: only what inserts its tokens there writes again over a row's old entries. Owners are asked of the
leak ledger where that is on, and the dump says "not checked: ledger off" where it is not. With overlap a request's own
counts lag behind its batch, and lengths are not held against them.

It copies rows to the host and waits for the device, so `contain` leaves it out unless it is named.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from gemma4_dumps.draft import DumpDraft, TensorPayload
from gemma4_dumps.schema import Provenance
from gemma4_dumps.structures import Defect, Structure
from gemma4_runtime import current
from gemma4_runtime.checks.page_ledger import LastEvent
from gemma4_runtime.checks.request_rows import Row, WrongEntry, check_rows, check_values
from gemma4_runtime.checks.violation import MAX_LISTED, BadIndex, Violation
from gemma4_runtime.defects import defect_of
from gemma4_runtime.errors import VerificationFailed
from gemma4_runtime.evidence import offences
from gemma4_runtime.indices.owner import role_of
from gemma4_runtime.indices.trtllm import believed_lengths
from gemma4_runtime.leak.by_identity import ByIdentity
from gemma4_runtime.leak.ledger import generations_of, ledger_of
from gemma4_runtime.release.allocators import free_page_lists
from gemma4_runtime.release.prefix_caches import path_slots
from gemma4_runtime.release.requests import committed_freed, held, prefilled_until, swa_evicted, write_slots

RULE = "request-rows"
ROW, ROW_INDEX, LENGTH, WRITE = "row_entry", "row_index", "length_differs", "write_misplaced"
TABLE, COUNTER = "table_entry", "counter_wrong"
_NEXT = "Scheduler.get_next_batch_to_run"
_INIT = "ForwardBatch.init_new"
_METADATA = "TRTLLMHAAttnBackend.init_forward_metadata"
_NO_ROW = -1


class _Seen:
    """What one scheduler's requests had at the check before.

    Attributes:
        rows: By request slot: its stay there, the node of the prefix cache that it held, and its row's entries.
        evicted: By request slot: its stay there, and how many of its first tokens had left the sliding window.
        written: Where the target's forward before this one wrote.
        lengths: What its kernels were told of each request slot.
        batch: The batch that runs.
        scheduler: The scheduler.
    """

    def __init__(self) -> None:
        self.rows: dict[int, tuple[tuple[Any, ...], Any, np.ndarray]] = {}
        self.evicted: dict[int, tuple[tuple[Any, ...], int]] = {}
        self.written: set[int] = set()
        self.lengths: dict[int, int] = {}
        self.batch: Any = None
        self.scheduler: Any = None


_SEEN: ByIdentity[_Seen] = ByIdentity()
_running: _Seen | None = None


def before_next_batch(scheduler: Any, **_unknown: Any) -> None:
    """Check all rows before `Scheduler.get_next_batch_to_run`, where no step is half done and they are read next."""
    batches = (scheduler.running_batch, scheduler.last_batch)
    requests = {id(request): request for batch in batches if batch is not None for request in batch.reqs}
    _check_counters(scheduler, list(requests.values()))
    _check_rows(scheduler, list(requests.values()), _NEXT)


def before_run_batch(scheduler: Any, batch: Any, *args: Any, **kwargs: Any) -> None:
    """Remember, before `Scheduler.run_batch`, whose batch it is, for the forwards inside."""
    global _running
    _running = _seen(scheduler)
    _running.scheduler, _running.batch = scheduler, batch


def after_init_new(made: Any, cls: type, batch: Any, runner: Any, *args: Any, **kwargs: Any) -> None:
    """Check the forward batch that `ForwardBatch.init_new(batch, runner)` returned."""
    mode = made.forward_mode
    if runner.is_draft_worker or mode.is_idle() or _running is None or _running.scheduler is None:
        return
    scheduler, requests = _running.scheduler, batch.reqs
    if not requests or len(requests) != len(made.req_pool_indices):
        return
    rows = made.req_pool_indices.tolist()
    wanted = [held(request).req_pool_idx for request in requests]
    if wrong := check_values(rows, wanted):
        taken = {slot for slot in wanted if slot is not None}
        pool = scheduler.req_to_token_pool
        free = set(pool.free_slots)
        kinds = [defect_of(w.value, w.expected, pool.size + 1, foreign=taken, free=free) for w in wrong]
        _report(scheduler, wrong, ROW_INDEX, _INIT, Structure.ROW_INDICES, _or_swapped(wrong, kinds), made, wanted)
    _check_lengths(scheduler, batch, made)
    _check_rows(scheduler, requests, _INIT, made)
    _check_writes(scheduler, requests, made, runner)


def after_trtllm_metadata(result: Any, backend: Any, forward_batch: Any, *args: Any, **kwargs: Any) -> None:
    """Check the lengths and tables that `TRTLLMHAAttnBackend.init_forward_metadata(forward_batch)` made for kernels."""
    if forward_batch.forward_mode.is_idle() or _running is None or _running.scheduler is None:
        return
    scheduler = _running.scheduler
    expected = believed_lengths(backend, forward_batch).tolist()
    given = backend.forward_metadata.cache_seqlens_int32.tolist()
    rows = forward_batch.req_pool_indices.tolist()
    if wrong := check_values(given, expected):
        width = scheduler.req_to_token_pool.req_to_token.shape[1]
        before = [{_running.lengths[row]} if row in _running.lengths else () for row in rows]
        kinds = [defect_of(w.value, w.expected, width + 1, foreign=set(expected), free=before[w.row]) for w in wrong]
        kinds = _or_swapped(wrong, kinds)
        _report(scheduler, wrong, LENGTH, _METADATA, Structure.KERNEL_LENGTHS, kinds, forward_batch, rows)
    _running.lengths = dict(zip(rows, given, strict=False))
    _check_tables(scheduler, backend, forward_batch, rows, expected)


def self_test() -> None:
    """Fire on one planted row of each kind, stay silent on a clean one. Pages of 4 tokens.

    Raises:
        VerificationFailed: the check no longer tells them apart.
    """
    clean = np.array([8, 9, 10, 11, 20, 21])
    owners = np.full(8, _NO_ROW)
    owners[[2, 5]] = 1

    def found(entries: np.ndarray, **more: Any) -> list[str]:
        return sorted({wrong.why for wrong in check_rows([Row(1, entries, **more)], 4, 32)})

    cases = {
        "clean": found(clean, before=clean, owners=owners),
        "changed": found(clean, before=clean[::-1]),
        "prefix": found(clean, protected=4, prefix=clean[:4] + 4),
        "outside": found(np.append(clean, 32)),
        "misplaced": found(clean[::-1]),
        "twice": found(np.array([8, 9, 10, 11, 8, 9])),
        "owner": found(np.array([8, 9, 10, 11, 24]), owners=owners),
        "shared": [wrong.why for wrong in check_rows([Row(1, clean), Row(2, clean)], 4, 32)][:1],
    }
    for case, whys in cases.items():
        if whys != ([] if case == "clean" else [case]):
            raise VerificationFailed(f"{RULE}: self test: {case}: {whys}")


def _seen(scheduler: Any) -> _Seen:
    return _SEEN.get(scheduler) or _SEEN.put(scheduler, _Seen())


def _check_lengths(scheduler: Any, batch: Any, made: Any) -> None:
    """Hold the batch's lengths against the tokens and the counters of its requests."""
    if scheduler.enable_overlap:
        return
    mode, lengths = made.forward_mode, made.seq_lens.tolist()
    if mode.is_target_verify():
        tokens = [len(request.origin_input_ids) + len(request.output_ids) - 1 for request in batch.reqs]
    elif mode.is_decode():
        tokens = [len(request.origin_input_ids) + len(request.output_ids) for request in batch.reqs]
    else:
        tokens = [prefilled_until(request) for request in batch.reqs]
    committed = [held(request).kv_committed_len for request in batch.reqs]
    width = scheduler.req_to_token_pool.req_to_token.shape[1]
    rows = [held(request).req_pool_idx for request in batch.reqs]
    for given, structure in ((lengths, Structure.BATCH_LENGTHS), (committed, Structure.REQUEST_COUNTERS)):
        if wrong := check_values(given, tokens):
            kinds = [defect_of(w.value, w.expected, width + 1, foreign=set(tokens)) for w in wrong]
            _report(scheduler, wrong, LENGTH, _INIT, structure, _or_swapped(wrong, kinds), made, rows)


def _check_rows(scheduler: Any, requests: Sequence[Any], site: str, made: Any = None) -> None:
    live = [r for r in requests if held(r).req_pool_idx is not None and not r.finished() and not committed_freed(r)]
    seen, pool = _seen(scheduler), scheduler.req_to_token_pool.req_to_token
    live = [request for request in live if 0 <= held(request).req_pool_idx < pool.shape[0]]
    for request in live:
        _evicted_before(seen, request)
    if not live:
        return
    allocator = scheduler.token_to_kv_pool_allocator
    inner = getattr(allocator, "full_attn_allocator", allocator)
    page, end = allocator.page_size, inner.size + allocator.page_size
    counts = [min(max(held(request).kv_committed_len, 0), pool.shape[1]) for request in live]
    table = pool[[held(request).req_pool_idx for request in live], : max(counts)].cpu().numpy().astype(np.int64)
    owners = _owners(scheduler, live)
    # A wrapper of streaming sessions holds no nodes itself.
    cache = getattr(scheduler.tree_cache, "inner", scheduler.tree_cache)
    rows, kept = [], {}
    for number, (request, count) in enumerate(zip(live, counts, strict=True)):
        entries, slot = table[number, :count].copy(), held(request).req_pool_idx
        # A retracted request may get the same slot again, with the same nodes of the cache and other pages.
        node = request.last_node if isinstance(request.last_node, int) else id(request.last_node)
        stay, nodes = (request.rid, request.retraction_count), (node, held(request).cache_protected_len)
        known = seen.rows.get(slot)
        earlier = known[2] if known is not None and known[0] == stay else None
        before = earlier if known is not None and known[1] == nodes else None
        path = path_slots(cache, request)
        prefix = None if path is None else path.numpy()
        protected = min(max(held(request).cache_protected_len, 0), count)
        rows.append(Row(slot, entries, protected, before, prefix, owners(slot), earlier))
        longer = before is not None and before.size > entries.size
        kept[slot] = (stay, nodes, before if longer else entries)
    wrong = check_rows(rows, page, end)
    if wrong:
        seen.rows = {}
        kinds = _row_defects(rows, wrong, allocator, page, end)
        slots = [row.slot for row in rows]
        had = _had(wrong[0], rows)
        _report(scheduler, wrong, ROW, site, Structure.REQUEST_ROW, kinds, made, slots, _table_of(rows), had)
    else:
        # Those that are not looked at now may come again; a slot that is given anew has another request.
        seen.rows.update(kept)


def _check_counters(scheduler: Any, requests: Sequence[Any]) -> None:
    """Hold what each request counts against the columns of its row, and against the nodes that it holds."""
    width = scheduler.req_to_token_pool.req_to_token.shape[1]
    cache = getattr(scheduler.tree_cache, "inner", scheduler.tree_cache)
    live = [r for r in requests if held(r).req_pool_idx is not None and not r.finished() and not committed_freed(r)]
    wrong, kinds, seen = [], [], _seen(scheduler)
    for number, request in enumerate(live):
        had = _evicted_before(seen, request)
        evicted = swa_evicted(request)
        if had is not None and evicted is not None and evicted < had:
            wrong.append(WrongEntry("fell", number, 0, evicted, had))
            kinds.append(_count_defect(scheduler, evicted, had, [swa_evicted(r) for r in live if r is not request]))
        path = path_slots(cache, request)
        protected = held(request).cache_protected_len
        if path is not None and protected != path.numel():
            others = [held(other).cache_protected_len for other in live if other is not request]
            wrong.append(WrongEntry("unlike", number, 0, protected, path.numel()))
            kinds.append(_count_defect(scheduler, protected, path.numel(), others))
        committed, tokens = held(request).kv_committed_len, len(request.origin_input_ids) + len(request.output_ids) - 1
        # The token that was sampled last has no KV yet. With overlap the request does not know of it.
        if request.output_ids and not scheduler.enable_overlap and committed != tokens:
            others = [held(other).kv_committed_len for other in live if other is not request]
            wrong.append(WrongEntry("unlike", number, 0, committed, tokens))
            kinds.append(defect_of(committed, tokens, width + 1, foreign=set(others)))
        allocated = held(request).kv_allocated_len
        if 0 <= allocated < committed:
            # Without drafts the two are alike, with them there may be more allocated.
            wrong.append(WrongEntry("unlike", number, 0, allocated, committed))
            kinds.append(defect_of(allocated, committed, width + 1))
        for count in (held(request).kv_committed_len, held(request).kv_allocated_len):
            if not 0 <= count <= width:
                wrong.append(WrongEntry("outside", number, 0, count))
                kinds.append(defect_of(count, None, width + 1))
    if wrong:
        seen.evicted = {}
        slots = [held(request).req_pool_idx for request in live]
        _report(scheduler, wrong, COUNTER, _NEXT, Structure.REQUEST_COUNTERS, kinds, None, slots)


def _count_defect(scheduler: Any, value: int, expected: int, others: Sequence[int | None]) -> Defect | None:
    """Return in which way a count of tokens is wrong, in pages where all of them are whole pages."""
    counts = [value, expected, *(one for one in others if one is not None)]
    unit = scheduler.page_size if not any(one % scheduler.page_size for one in counts) else 1
    end = scheduler.req_to_token_pool.req_to_token.shape[1] // unit + 1
    return defect_of(value // unit, expected // unit, end, foreign={one // unit for one in counts[2:]})


def _evicted_before(seen: _Seen, request: Any) -> int | None:
    """Return how many tokens of a request had left the window when it was last looked at, and note that for now."""
    slot, stay, evicted = held(request).req_pool_idx, (request.rid, request.retraction_count), swa_evicted(request)
    known = seen.evicted.get(slot)
    if evicted is not None:
        seen.evicted[slot] = (stay, evicted)
    return known[1] if known is not None and known[0] == stay else None


def _check_tables(
    scheduler: Any, backend: Any, forward_batch: Any, rows: Sequence[int], lengths: Sequence[int]
) -> None:
    """Hold each page that a kernel will follow against the row that the table was made of.

    A place that the map has nothing for is left to `page-table`, which knows what the window still needs; where it is
    on, a value that is no page of the pool is too.
    """
    metadata, allocator = backend.forward_metadata, scheduler.token_to_kv_pool_allocator
    entries = scheduler.req_to_token_pool.req_to_token
    table, page = metadata.page_table, backend.page_size
    if table is None or backend.req_to_token_pool is not scheduler.req_to_token_pool:
        return
    if table.shape[0] != len(rows) or not all(0 <= row < entries.shape[0] for row in rows):
        return
    slots = entries[rows, ::page][:, : table.shape[1]].cpu().numpy().astype(np.int64)
    live = np.arange(slots.shape[1]) * page < np.asarray(lengths)[:, None]
    full, swa = getattr(allocator, "full_attn_allocator", allocator), getattr(allocator, "swa_attn_allocator", None)
    checks = [(Structure.FULL_TABLE, table, slots // page, full)]
    mapping = getattr(allocator, "full_to_swa_index_mapping", None)
    if metadata.swa_page_table is not None and mapping is not None and swa is not None:
        inside = (slots >= 0) & (slots < mapping.numel())
        mapped = np.where(inside, mapping.cpu().numpy()[np.where(inside, slots, 0)], 0) // page
        checks.append((Structure.SWA_TABLE, metadata.swa_page_table, mapped, swa))
    for structure, made, expected, pool in checks:
        found = made[:, : expected.shape[1]].cpu().numpy().astype(np.int64)
        followed = live & (expected > 0)
        if current.switched_on("page-table"):
            # What is no page of the pool is that probe's to report, whichever of the two looks first.
            followed &= (found > 0) & (found <= pool.size // page)
        bad = np.argwhere(followed & (found != expected))
        if not len(bad):
            continue
        wrong = tuple(
            WrongEntry("unlike", int(row), int(column), int(found[row, column]), int(expected[row, column]))
            for row, column in bad[:MAX_LISTED]
        )
        other = checks[structure is Structure.FULL_TABLE and len(checks) > 1][2]
        free = {number for pages in free_page_lists(pool) for number in pages.tolist()}
        kinds = []
        for one in wrong:
            own = set(expected[one.row][followed[one.row]].tolist())
            foreign = set(np.delete(expected, one.row, 0)[np.delete(followed, one.row, 0)].tolist())
            twin = int(other[one.row, one.column]) if len(checks) > 1 else None
            kinds.append(defect_of(one.value, one.expected, pool.size // page + 1, own, foreign, free, twin))
        shown = {"table": TensorPayload.from_array(found), "expected_table": TensorPayload.from_array(expected)}
        kinds, role = _or_swapped(wrong, kinds), role_of(backend)
        _report(scheduler, wrong, TABLE, _METADATA, structure, kinds, forward_batch, rows, shown, role=role)


def _check_writes(scheduler: Any, requests: Sequence[Any], made: Any, runner: Any) -> None:
    """Hold each slot that a forward of the target will write against the entry of its token."""
    mode, locations = made.forward_mode, write_slots(made)
    if locations is None:
        return
    lengths = made.seq_lens.tolist()
    if mode.is_target_verify():
        count = made.input_ids.shape[0] // len(lengths)
        spans = [(length, length + count) for length in lengths]
    elif mode.is_decode():
        spans = [(length - 1, length) for length in lengths]
    elif mode.is_extend():
        counted = zip(made.extend_prefix_lens_cpu, made.extend_seq_lens_cpu, strict=True)
        spans = [(int(start), int(start + more)) for start, more in counted]
    else:
        return
    table = scheduler.req_to_token_pool.req_to_token
    slots = [held(request).req_pool_idx for request in requests]
    spans = [(start, min(stop, table.shape[1])) for start, stop in spans]
    found = locations.cpu().numpy()
    seen = _seen(scheduler)
    before, seen.written = seen.written, set(found.tolist())
    ends = np.cumsum([stop - start for start, stop in spans])
    if found.size < ends[-1]:
        return
    # One that has ended since its step was prepared, as with a grammar beside overlap, has no row any more.
    expected = np.concatenate(
        [
            found[end - (stop - start) : end] if slot is None else table[slot, start:stop].cpu().numpy()
            for slot, (start, stop), end in zip(slots, spans, ends, strict=True)
        ]
    )
    at = np.flatnonzero(found[: expected.size] != expected)
    if not at.size:
        return
    owner = np.repeat(np.arange(len(slots)), [stop - start for start, stop in spans])
    column = np.concatenate([np.arange(start, stop) for start, stop in spans])
    wrong = tuple(
        WrongEntry("unlike", int(owner[i]), int(column[i]), int(found[i]), int(expected[i])) for i in at[:MAX_LISTED]
    )
    allocator = scheduler.token_to_kv_pool_allocator
    inner = getattr(allocator, "full_attn_allocator", allocator)
    whose = {int(value): number for value, number in zip(expected, owner, strict=True)}
    kinds = []
    for one in wrong:
        own = {value for value, number in whose.items() if number == one.row}
        foreign = {
            value
            for number, slot in enumerate(slots)
            if number != one.row and slot is not None
            for value in table[slot, : spans[number][1]].tolist()
        }
        pages = set(inner.free_pages.tolist())
        earlier = before | set(table[slots[one.row], : one.column].tolist())
        free = {one.value} if one.value // allocator.page_size in pages or one.value in earlier else set()
        twin = _twin(allocator, one.expected)
        end = inner.size + allocator.page_size
        kinds.append(defect_of(one.value, one.expected, end, own, foreign, free, twin))
    kinds = _or_swapped(wrong, kinds)
    _report(scheduler, wrong, WRITE, _INIT, Structure.WRITE_LOCATIONS, kinds, made, slots)


def _owners(scheduler: Any, requests: Sequence[Any]) -> Callable[[int], np.ndarray | None]:
    """Return what gives a request slot its row of owners, by the ledger; None where that is off."""
    if not current.switched_on("leak-ledger"):
        return lambda slot: None
    ledger = ledger_of(scheduler.token_to_kv_pool_allocator)
    ledger.log.drain()
    pages, generations = ledger.pools["full"], generations_of(scheduler.req_to_token_pool)
    used = np.isin(pages.last_event, (LastEvent.HANDED_OUT, LastEvent.OWNED, LastEvent.FREE_ASKED))

    def of(slot: int) -> np.ndarray:
        return np.where(used & (pages.generation == generations[slot]), pages.owner, _NO_ROW)

    return of


def _twin(allocator: Any, slot: int | None) -> int | None:
    """Return what the mapping has for a full slot; None without a second pool."""
    mapping = getattr(allocator, "full_to_swa_index_mapping", None)
    return int(mapping[slot]) if mapping is not None and slot is not None and 0 <= slot < mapping.numel() else None


def _row_defects(
    rows: Sequence[Row], wrong: Sequence[WrongEntry], allocator: Any, page: int, end: int
) -> list[Defect | None]:
    """Return in which way each entry is wrong, in pages."""
    inner = getattr(allocator, "full_attn_allocator", allocator)
    free = {page for pages in free_page_lists(inner) for page in pages.tolist()}
    bad = {(one.row, one.column) for one in wrong}
    pages = {(row, column // page) for row, column in bad}
    # These name a page by its first token: the rest of it is as wrong.
    whole = {(one.row, one.column // page) for one in wrong if one.why in ("owner", "shared")}
    held = [
        {
            int(value) // page
            for at, value in enumerate(row.entries)
            if (number, at) not in bad
            and (number, at // page) not in whole
            and not (_is_new(row, at) and (number, at // page) in pages)
        }
        for number, row in enumerate(rows)
    ]
    found = []
    for one in wrong:
        if _node_differs(one, rows):
            # The row is as it was, so that the other of the two is what is wrong.
            one = replace(one, value=one.expected or 0, expected=one.value)
        expected = None if one.expected is None else one.expected // page
        twin = _twin(allocator, one.expected)
        foreign = set().union(*(pages for number, pages in enumerate(held) if number != one.row))
        value = -1 if one.value < 0 else one.value // page
        own = held[one.row] if one.why != "twice" else {value}
        owned = rows[one.row].owners
        if one.why == "owner" and owned is not None and value not in free:
            foreign = foreign | {value}
        known = None if twin is None else twin // page
        found.append(defect_of(value, expected, end // page, own, foreign, free, known))
    return _or_swapped(wrong, found)


def _is_new(row: Row, at: int) -> bool:
    """Say whether a token came since the check before, so that its entry, wrong or not, has nothing to differ from."""
    return row.before is not None and at >= row.before.size


def _or_swapped(wrong: Sequence[WrongEntry], kinds: list[Defect | None]) -> list[Defect | None]:
    """Return `kinds`, with SWAPPED for each of two wrong entries that have each other's value."""
    pairs = {(one.value, one.expected) for one in wrong}
    return [
        Defect.SWAPPED if one.expected is not None and (one.expected, one.value) in pairs else kind
        for one, kind in zip(wrong, kinds, strict=True)
    ]


def _bad(one: WrongEntry) -> BadIndex:
    """Return it as an index that had to be one value; where that is not known, as one that had to be above 0."""
    lower, upper = (1, 1 << 62) if one.expected is None else (one.expected, one.expected + 1)
    return BadIndex(one.row, one.column, one.value, lower, upper)


def _had(first: WrongEntry, rows: Sequence[Row]) -> dict[str, Any]:
    """Return what the place had at the check before, if that is known.

    Where the prefix cache has got the row's tokens since, only a row and its nodes that differ can be held against it.
    """
    row = rows[first.row]
    before = row.earlier if first.why == "prefix" else row.before
    had = int(before[first.column]) if before is not None and first.column < before.size else None
    return {"row_had": had, "as_before": None if had is None else had == first.value}


def _node_differs(one: WrongEntry, rows: Sequence[Row]) -> bool:
    return one.why == "prefix" and _had(one, rows)["as_before"] is True


def _table_of(rows: Sequence[Row]) -> dict[str, TensorPayload]:
    """Return the rows as one tensor, int64 [rows, tokens], -1 behind a row's end."""
    table = np.full((len(rows), max(row.entries.size for row in rows)), _NO_ROW, np.int64)
    for number, row in enumerate(rows):
        table[number, : row.entries.size] = row.entries
    return {"rows": TensorPayload.from_array(table)}


def _report(
    scheduler: Any,
    wrong: Sequence[WrongEntry],
    verdict: str,
    site: str,
    structure: Structure,
    kinds: Sequence[Defect | None],
    made: Any,
    slots: Sequence[int | None],
    tensors: Mapping[str, TensorPayload] | None = None,
    had: Mapping[str, Any] | None = None,
    role: str | None = "target",
) -> None:
    first = wrong[0]
    kind = kinds[0]
    listed = tuple(map(_bad, wrong[:MAX_LISTED]))
    violation = Violation(verdict, listed, len(wrong))
    should = "" if first.expected is None else f", and should have {first.expected}"
    place = {ROW: "token {}", WRITE: "token {}", TABLE: "column {}"}.get(verdict, "its entry").format(first.column)
    summary = (
        f"{structure.value}: {place} of request slot {slots[first.row]} has {first.value}{should} "
        f"({first.why}; {len(wrong)} entries)"
    )
    mode = getattr(made, "forward_mode", None)
    owners = "checked" if current.switched_on("leak-ledger") else "not checked: ledger off"

    def draft() -> DumpDraft:
        return DumpDraft(
            rule=RULE,
            site=site,
            summary=summary,
            verdict=verdict,
            provenance=Provenance(table_origin=structure.value, explanation=summary),
            forward_mode=getattr(mode, "name", None),
            role=role if made is not None else None,
            step=int(scheduler.forward_ct),
            page_size=int(scheduler.page_size),
            scalars={
                "structure": structure.value,
                "defect": None if kind is None else kind.value,
                "why": first.why,
                "value": first.value,
                "expected": first.expected,
                "token": first.column,
                "request_slot": slots[first.row],
                **(had or {"as_before": None}),
                "owners": owners,
            },
            offences=offences(listed, "rows" if verdict == ROW else structure.value, tuple(slots)),
            tensors=dict(tensors or {}),
        )

    current.guard().report(violation, RULE, site, draft, key=(structure.value,))
