"""What `request-rows` asks of a forward's places: pages of tables, slots to write and positions are what rows say."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gemma4_dumps.draft import TensorPayload
from gemma4_dumps.structures import Defect, Structure
from gemma4_runtime import current
from gemma4_runtime.checks.request_rows import WrongEntry, check_values
from gemma4_runtime.defects import defect_of
from gemma4_runtime.indices.owner import role_of, window_is_strict
from gemma4_runtime.release.allocators import free_page_lists
from gemma4_runtime.release.requests import committed_freed, held, write_slots
from gemma4_runtime.releases import at_least, read_as
from gemma4_runtime.rows.counts import ALLOCATED
from gemma4_runtime.rows.owner import owner_of
from gemma4_runtime.rows.report import (
    COUNTER,
    DRAFT_POSITIONS,
    INIT,
    LENGTH,
    LISTS,
    METADATA,
    POSITION,
    ROW,
    TABLE,
    WRITE,
    or_swapped,
    report_wrong,
)
from gemma4_runtime.rows.seen import Seen, seen_of

_RESERVED_IS_COUNTED = at_least(read_as(), "0.5.23")

MAX_COMPARED = 4096
"""Of how many wrong entries it is looked at in which way they are wrong."""


def check_tables(scheduler: Any, backend: Any, forward_batch: Any, rows: Sequence[int], lengths: Sequence[int]) -> None:
    """Hold each page that a kernel will follow against the row that the table was made of.

    A place that the map has nothing for is left to `page-table`, which knows what the window still needs; where it is
    on, a value that is no page of the pool is too, but for a null page of the window with overlap.
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
        other = checks[structure is Structure.FULL_TABLE and len(checks) > 1][2] if len(checks) > 1 else None
        _hold(scheduler, structure, found, expected, live, pool, 1, METADATA, forward_batch, rows, backend, other)


def _hold(
    scheduler: Any,
    structure: Structure,
    found: np.ndarray,
    expected: np.ndarray,
    live: np.ndarray,
    pool: Any,
    unit: int,
    site: str,
    made: Any,
    rows: Sequence[int],
    backend: Any,
    other: np.ndarray | None = None,
) -> None:
    """Report what a kernel is to follow where `expected` is known to belong, [rows, any] each.

    Args:
        scheduler: Whose requests they are.
        structure: What is looked at.
        found: What stands there.
        expected: What should; 0 where nothing is known.
        live: Which entries are followed.
        pool: The allocator of the entries' pool.
        unit: Entries of a page: 1, or its tokens where entries are slots.
        site: The function of SGLang's at which it was seen.
        made: The forward's batch.
        rows: Request slot of each row.
        backend: Whose it is.
        other: What the other pool has at the same places.
    """
    end = (pool.size // pool.page_size + 1) * unit
    followed = live & (expected > 0)
    if current.switched_on("page-table"):
        # What is no page of the pool is that probe's to report, whichever of the two looks first. With overlap it lets
        # a null page of the window pass, since it does not know the map.
        null = (found >= 0) & (found < unit) & (structure is Structure.SWA_TABLE and not window_is_strict(backend))
        followed &= null | ((found >= unit) & (found < end))
    bad = np.argwhere(followed & (found != expected))
    if not len(bad):
        seen_of(scheduler).tables[structure, role_of(backend)] = (list(rows), found)
        return
    # All of them, since what was exchanged or turned round is told by the whole.
    wrong = tuple(
        WrongEntry("unlike", int(row), int(column), int(found[row, column]), int(expected[row, column]))
        for row, column in bad[:MAX_COMPARED]
    )
    free = {number for pages in free_page_lists(pool) for number in pages.tolist()}
    held = [set(each[here & (each > 0)].tolist()) for each, here in zip(expected, live, strict=True)]
    kinds = []
    for one in wrong:
        own = held[one.row]
        foreign = set().union(*(each for number, each in enumerate(held) if number != one.row)) - own
        twin = None if other is None else int(other[one.row, one.column])
        stale = {one.value} if one.value // unit in free else set()
        kinds.append(defect_of(one.value, one.expected, end, own, foreign, stale, twin))
    shown = {"table": TensorPayload.from_array(found), "expected_table": TensorPayload.from_array(expected)}
    kinds, role = or_swapped(wrong, kinds), role_of(backend)
    if old := _is_the_table_before(seen_of(scheduler), structure, role, rows, found, live):
        # One place that was empty then, and is now, may have been emptied as well.
        emptied = [one.value for one in wrong] == [0]
        kinds = [None if emptied else Defect.STALE] * len(wrong)
    had = {
        "as_before": None,
        "table_as_before": old,
        **owner_of(scheduler, wrong[0].value // unit, "full" if structure is Structure.FULL_TABLE else "swa"),
    }
    report_wrong(scheduler, wrong, TABLE, site, structure, kinds, made, rows, shown, had, role)


def _is_the_table_before(
    seen: Seen, structure: Structure, role: str | None, rows: Sequence[int], found: np.ndarray, live: np.ndarray
) -> bool | None:
    """Return whether what is followed is what the forward before followed for these rows; None if that is not known."""
    before = seen.tables.get((structure, role))
    if before is None or before[0] != list(rows):
        return None
    # Behind its end it had nothing yet.
    had, width = np.zeros_like(found), min(found.shape[1], before[1].shape[1])
    had[:, :width] = before[1][:, :width]
    return bool((had == found)[live].all())


def check_lists(scheduler: Any, backend: Any, forward_batch: Any) -> None:
    """Hold Triton's ragged lists against the rows that they were gathered from, and what the map makes of those.

    The window's list ends where the full one does. What the map has nothing for, and what is no slot of the pool, is
    left to `page-table`, as in tables.
    """
    metadata, allocator = backend.forward_metadata, scheduler.token_to_kv_pool_allocator
    table, page, mode = scheduler.req_to_token_pool.req_to_token, allocator.page_size, forward_batch.forward_mode
    translates = getattr(getattr(backend, "kv_index_translator", None), "is_translating", False)
    if translates or getattr(backend, "dcp_size", 1) > 1 or getattr(backend, "enable_deterministic", False):
        return
    rows = forward_batch.req_pool_indices.tolist()
    of_prefix = mode.is_extend() and not mode.is_target_verify()
    believed = forward_batch.extend_prefix_lens if of_prefix else forward_batch.seq_lens
    if believed is None or metadata.kv_indptr is None or not len(rows) == len(believed) < len(metadata.kv_indptr):
        return
    if backend.req_to_token is not table or not all(0 <= row < table.shape[0] for row in rows):
        return
    lengths = believed.tolist()
    if wrong := check_values(np.diff(metadata.kv_indptr[: len(rows) + 1].tolist()).tolist(), lengths):
        kinds = [defect_of(w.value, w.expected, table.shape[1] + 1, foreign=set(lengths)) for w in wrong]
        structure, kinds, role = Structure.KERNEL_LENGTHS, or_swapped(wrong, kinds), role_of(backend)
        report_wrong(scheduler, wrong, LENGTH, LISTS, structure, kinds, forward_batch, rows, role=role)
        return
    full, swa = getattr(allocator, "full_attn_allocator", allocator), getattr(allocator, "swa_attn_allocator", None)
    checks = [(Structure.FULL_TABLE, metadata.kv_indices, metadata.kv_indptr, None, full)]
    if metadata.window_kv_indices is not None and swa is not None:
        mapping = allocator.full_to_swa_index_mapping.cpu().numpy()
        checks.append((Structure.SWA_TABLE, metadata.window_kv_indices, metadata.window_kv_indptr, mapping, swa))
    slots = table[rows].cpu().numpy().astype(np.int64)
    for structure, made, indptr, mapping, pool in checks:
        ends = indptr[: len(rows) + 1].tolist()
        counts = np.diff(ends)
        places = np.arange(max(counts, default=0)) + (np.asarray(lengths) - counts)[:, None]
        live = (places >= 0) & (places < np.asarray(lengths)[:, None])
        expected = np.take_along_axis(slots, np.where(live, places, 0), 1)
        if mapping is not None:
            inside = (expected >= 0) & (expected < mapping.size)
            expected = np.where(inside, mapping[np.where(inside, expected, 0)], 0)
        found = np.zeros_like(expected)
        found[np.arange(found.shape[1]) < counts[:, None]] = made[: ends[-1]].cpu().numpy()
        _hold(scheduler, structure, found, expected, live, pool, page, LISTS, forward_batch, rows, backend)


def check_writes(scheduler: Any, requests: Sequence[Any], made: Any) -> None:
    """Hold each slot that a forward of the target will write against the entry of its token."""
    locations, spans = write_slots(made), spans_of(made)
    if locations is None or spans is None:
        return
    table = scheduler.req_to_token_pool.req_to_token
    slots = [held(request).req_pool_idx for request in requests]
    spans = [(start, min(stop, table.shape[1])) for start, stop in spans]
    found = locations.cpu().numpy()
    seen = seen_of(scheduler)
    repeated, before = np.array_equal(found, seen.written), set(seen.written.tolist())
    seen.written = found
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
        WrongEntry("unlike", int(owner[i]), int(column[i]), int(found[i]), int(expected[i])) for i in at[:MAX_COMPARED]
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
        of_row = set(table[slots[one.row], : one.column].tolist())
        # A prefix that two requests share is each one's own.
        foreign, earlier = foreign - of_row, before | of_row
        free = {one.value} if one.value // allocator.page_size in pages or one.value in earlier else set()
        twin = twin_of(allocator, one.expected)
        end = inner.size + allocator.page_size
        kind = defect_of(one.value, one.expected, end, own, foreign, free, twin)
        kinds.append(_of_repeated(kind, found.size) if repeated else kind)
    kinds = or_swapped(wrong, kinds)
    had = {"as_before": None, **owner_of(scheduler, wrong[0].value // allocator.page_size)}
    had |= _rows_read(table, slots, spans, found, ends)
    report_wrong(scheduler, wrong, WRITE, INIT, Structure.WRITE_LOCATIONS, kinds, made, slots, had=had)


def _rows_read(
    table: Any, slots: Sequence[int | None], spans: Sequence[tuple[int, int]], found: np.ndarray, ends: np.ndarray
) -> dict[str, str]:
    """Return, for a dump, whose row of the batch has at each request's tokens what it is to write; nothing if not all.

    Where two rows have nothing there, as another order would have it is told: that of the rows' numbers.
    """
    whole = [slot for slot in slots if slot is not None]
    if len(whole) < max(len(slots), 2) or len(set(whole)) < len(whole):
        return {}
    entries, read = table[whole].cpu().numpy(), []
    for (start, stop), end, ordered in zip(spans, ends.tolist(), sorted(whole), strict=True):
        alike = (entries[:, start:stop] == found[end - (stop - start) : end]).all(1)
        fits = [slot for slot, fit in zip(whole, alike, strict=True) if fit]
        if not fits or (len(fits) > 1 and ordered not in fits):
            return {}
        read.append(fits[0] if len(fits) == 1 else ordered)
    return {"rows_read": ",".join(map(str, read)), "rows_in_order": ",".join(map(str, whole))}


def check_reserved(scheduler: Any, requests: Sequence[Any], made: Any) -> None:
    """Find tokens that a forward of the target will write, and for which the request was given no slots.

    The row tells which is wrong: where it has nothing, or by the ledger a page of nobody's or another's, too few slots
    were taken; where it has pages of the request, its count is too small.

    Args:
        scheduler: Whose requests they are.
        requests: Those of the batch.
        made: The forward's batch.
    """
    spans, page = spans_of(made), scheduler.page_size
    # Before 0.5.23 a verification may write slots that the request's count has only once drafts are accepted.
    if not _RESERVED_IS_COUNTED or spans is None or len(spans) != len(requests):
        return
    table = scheduler.req_to_token_pool.req_to_token
    wrong, kinds, counted = [], [], False
    for row, (request, (_, stop)) in enumerate(zip(requests, spans, strict=True)):
        record = held(request)
        slot, allocated = record.req_pool_idx, record.kv_allocated_len
        # One that has ended meanwhile, as with overlap, gave back what it had.
        if slot is None or not 0 <= allocated < stop or request.finished() or committed_freed(request):
            continue
        entries = table[slot, allocated : min(stop, table.shape[1])].tolist()
        owners = [owner_of(scheduler, entry // page).get("page_owner") for entry in entries]
        own = bool(entries) and all(entry > 0 and owner == slot for entry, owner in zip(entries, owners, strict=True))
        counted |= own
        wrong.append(WrongEntry("reserved", row, allocated, allocated, stop))
        kinds.append(None if own else Defect.LOST)
    if wrong:
        slots = [held(request).req_pool_idx for request in requests]
        first = wrong[0]
        verdict, structure = (COUNTER, Structure.REQUEST_COUNTERS) if counted else (ROW, Structure.REQUEST_ROW)
        summary = f"the forward writes tokens up to {first.expected} of the request in slot {slots[first.row]}, which "
        summary += f"has slots for {first.value} by its count"
        at = table[slots[first.row], first.value : first.value + 1].tolist()
        had = {"as_before": None, "row_has": at[0] if at else None, **_taken_ahead(scheduler, requests)}
        had |= {"counter": ALLOCATED} if counted else {}
        report_wrong(scheduler, wrong, verdict, INIT, structure, kinds, made, slots, had=had, summary=summary)


def _taken_ahead(scheduler: Any, requests: Sequence[Any]) -> dict[str, Any]:
    """Return, for a dump, from where to where each request was given slots ahead last, and what it counts.

    Nothing where `swa-allocator` is off, or the latest such call was for another number of requests.
    """
    if not current.switched_on("swa-allocator"):
        return {}
    from gemma4_runtime.probes.swa_allocator_state import books_of

    call = books_of(scheduler.token_to_kv_pool_allocator).history.latest("alloc_extend")
    begins, ends = call.get("prefix_lens"), call.get("seq_lens")
    if begins is None or ends is None or not len(begins) == len(ends) == len(requests):
        return {}
    counts = [int(held(request).kv_allocated_len) for request in requests]
    words = {"taken_from": begins, "taken_until": ends, "counted": counts}
    return {name: ",".join(map(str, values)) for name, values in words.items()}


def check_swa_writes(scheduler: Any, backend: Any, made: Any, site: str) -> None:
    """Hold where the sliding layers of a target's forward will write against what the map makes of its slots.

    The map itself is held against the places that the slots have in their pages: they are the same in both pools. Where
    the map has nothing nothing is known, as for padding and, with overlap, for a request that has ended. What is
    no slot of the pool is left to `page-table`, as in tables.
    """
    allocator = scheduler.token_to_kv_pool_allocator
    mapping, swa = getattr(allocator, "full_to_swa_index_mapping", None), getattr(allocator, "swa_attn_allocator", None)
    locations = getattr(backend.forward_metadata, "swa_out_cache_loc", None)
    translates = getattr(getattr(backend, "kv_index_translator", None), "is_translating", False)
    if locations is None or mapping is None or swa is None or translates:
        return
    if role_of(backend) == "draft" or getattr(backend, "dcp_size", 1) > 1 or (spans := spans_of(made)) is None:
        return
    if (slots := write_slots(made)) is None:
        return
    found, seen = locations.cpu().numpy().astype(np.int64), seen_of(scheduler)
    before, seen.swa_written = seen.swa_written, found
    owner = np.repeat(np.arange(len(spans)), [stop - start for start, stop in spans])
    column = np.concatenate([np.arange(start, stop) for start, stop in spans])
    full = slots.cpu().numpy().astype(np.int64)[: owner.size]
    if found.size < owner.size or full.size < owner.size:
        return
    inside = (full >= 0) & (full < mapping.numel())
    expected = np.where(inside, mapping.cpu().numpy()[np.where(inside, full, 0)], 0)
    page, end, now = swa.page_size, swa.size + swa.page_size, found[: owner.size]
    followed = expected > 0
    # A slot is as far into its page in both pools. A place beyond the pool is the hand-out's, and is told as that.
    own = expected // page * page + full % page
    if (out := np.flatnonzero(followed & (expected < end) & (full > 0) & (expected != own))).size:
        of_map = tuple(
            WrongEntry("place in its page", int(owner[i]), int(column[i]), int(expected[i]), int(own[i]))
            for i in out[:MAX_COMPARED]
        )
        rows, had = made.req_pool_indices.tolist(), {"as_before": None, "pool": "swa"}
        kinds = or_swapped(of_map, [defect_of(w.value, w.expected, end) for w in of_map])
        report_wrong(scheduler, of_map, WRITE, site, Structure.SWA_MAPPING, kinds, made, rows, had=had)
        return
    if current.switched_on("page-table"):
        # Page 0 is none that it reports: padding is written there.
        followed &= (now >= 0) & (now < end)
    at = np.flatnonzero(followed & (now != expected))
    if not at.size:
        return
    wrong = tuple(
        WrongEntry("unlike", int(owner[i]), int(column[i]), int(now[i]), int(expected[i])) for i in at[:MAX_COMPARED]
    )
    repeated = bool((found > 0).all()) and np.array_equal(found, before)
    free = {number for pages in free_page_lists(swa) for number in pages.tolist()}
    kinds = []
    for i, one in zip(at, wrong, strict=False):
        own, foreign = set(expected[owner == one.row].tolist()), set(expected[owner != one.row].tolist())
        stale = {one.value} if one.value in before or one.value // page in free else set()
        kind = defect_of(one.value, one.expected, end, own, foreign, stale, int(full[i]))
        kinds.append(_of_repeated(kind, found.size) if repeated else kind)
    shown = {"locations": TensorPayload.from_array(now), "expected_locations": TensorPayload.from_array(expected)}
    rows, structure, kinds = made.req_pool_indices.tolist(), Structure.WRITE_LOCATIONS, or_swapped(wrong, kinds)
    had = {"as_before": None, "pool": "swa", **owner_of(scheduler, wrong[0].value // page, "swa")}
    report_wrong(scheduler, wrong, WRITE, site, structure, kinds, made, rows, shown, had)


def _of_repeated(kind: Defect | None, count: int) -> Defect | None:
    """Return in which way slots are wrong that are all those of the step before.

    A decode goes on by one slot: of a single one, that of the step before is one off as well.
    """
    return None if count == 1 and kind is Defect.OFF_BY_ONE else Defect.STALE


def spans_of(made: Any) -> list[tuple[int, int]] | None:
    """Return for each request from where to where its tokens of a target's forward stand; None of another forward."""
    mode, lengths = made.forward_mode, made.seq_lens.tolist()
    if mode.is_target_verify():
        count = made.input_ids.shape[0] // len(lengths)
        return [(length, length + count) for length in lengths]
    if mode.is_decode():
        return [(length - 1, length) for length in lengths]
    if mode.is_extend():
        counted = zip(made.extend_prefix_lens_cpu, made.extend_seq_lens_cpu, strict=True)
        return [(int(start), int(start + more)) for start, more in counted]
    return None


def check_positions(scheduler: Any, requests: Sequence[Any], made: Any) -> None:
    """Hold the position of each token of a forward of the target against its request's length.

    A tree of drafts has several tokens at one position, and is left out.
    """
    spans = spans_of(made)
    if spans is None or getattr(made.spec_info, "topk", 1) not in (1, None):
        return
    expected = np.concatenate([np.arange(start, stop) for start, stop in spans])
    owner = np.repeat(np.arange(len(spans)), [stop - start for start, stop in spans])
    slots = [held(request).req_pool_idx for request in requests]
    _report_positions(scheduler, made, expected.clip(0), owner, slots, INIT, "target")


def check_draft_positions(scheduler: Any, forward_batch: Any) -> None:
    """Hold the positions of a frozen draft's forward, one for all its steps, against the last token that has KV."""
    positions, lengths = forward_batch.positions, forward_batch.seq_lens
    count = lengths.numel()
    if positions is None or not count or positions.numel() % count:
        return
    each = positions.numel() // count
    last = np.repeat(lengths.cpu().numpy().astype(np.int64) - 1, each).clip(0)
    rows = forward_batch.req_pool_indices.tolist()
    owner = np.repeat(np.arange(count), each)
    _report_positions(scheduler, forward_batch, last, owner, rows, DRAFT_POSITIONS, "draft")


def _report_positions(
    scheduler: Any,
    made: Any,
    expected: np.ndarray,
    owner: np.ndarray,
    slots: Sequence[int | None],
    site: str,
    role: str,
) -> None:
    if made.positions is None or made.positions.numel() != expected.size:
        return
    found = made.positions.cpu().numpy()
    at = np.flatnonzero(found != expected)
    if not at.size:
        return
    wrong = tuple(
        WrongEntry("unlike", int(owner[i]), int(i), int(found[i]), int(expected[i])) for i in at[:MAX_COMPARED]
    )
    width = scheduler.req_to_token_pool.req_to_token.shape[1]
    kinds = []
    for one in wrong:
        foreign, own = set(expected[owner != one.row].tolist()), {one.value}
        # A position is nobody's: most requests have the one beside it, too.
        beside = one.expected is not None and abs(one.value - one.expected) == 1
        kinds.append(defect_of(one.value, one.expected, width, own=own if beside else (), foreign=foreign))
    kinds = or_swapped(wrong, kinds)
    report_wrong(scheduler, wrong, POSITION, site, Structure.POSITIONS, kinds, made, slots, role=role)


def twin_of(allocator: Any, slot: int | None) -> int | None:
    """Return what the mapping has for a full slot; None without a second pool."""
    mapping = getattr(allocator, "full_to_swa_index_mapping", None)
    return int(mapping[slot]) if mapping is not None and slot is not None and 0 <= slot < mapping.numel() else None
