"""What `request-rows` asks of rows of req_to_token: their entries are their requests' own, and no two have one row."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from gemma4_dumps.draft import TensorPayload
from gemma4_dumps.structures import Defect, Structure
from gemma4_runtime import current
from gemma4_runtime.checks.page_ledger import LastEvent
from gemma4_runtime.checks.request_rows import Row, WrongEntry, check_rows
from gemma4_runtime.defects import defect_of
from gemma4_runtime.leak.ledger import generations_of, ledger_of
from gemma4_runtime.release.allocators import free_page_lists
from gemma4_runtime.release.prefix_caches import path_slots, paths_of
from gemma4_runtime.release.requests import committed_freed, held, stay_of
from gemma4_runtime.release.tree_links import broken_nodes
from gemma4_runtime.rows.counts import PROTECTED
from gemma4_runtime.rows.new_slots import new_slots_of
from gemma4_runtime.rows.owner import given_up, owner_of
from gemma4_runtime.rows.places import twin_of
from gemma4_runtime.rows.report import COUNTER, ROW, ROW_INDEX, or_swapped, report_wrong
from gemma4_runtime.rows.seen import evicted_before, seen_of

NO_ROW = -1


def check_row_entries(
    scheduler: Any, requests: Sequence[Any], site: str, made: Any = None, role: str | None = "target"
) -> None:
    """Find entries of these requests' rows that are not what the check before, the nodes and the ledger say."""
    live = [r for r in requests if held(r).req_pool_idx is not None and not r.finished() and not committed_freed(r)]
    seen, pool = seen_of(scheduler), scheduler.req_to_token_pool.req_to_token
    live = [request for request in live if 0 <= held(request).req_pool_idx < pool.shape[0]]
    _check_rows_differ(scheduler, live, site, made, role)
    for request in live:
        evicted_before(seen, request)
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
    for number, (request, count, path) in enumerate(zip(live, counts, paths_of(cache, live), strict=True)):
        entries, slot = table[number, :count].copy(), held(request).req_pool_idx
        # A retracted request may get the same slot again, with the same nodes and other pages.
        node = request.last_node if isinstance(request.last_node, int) else id(request.last_node)
        stay, nodes = stay_of(request), (node, held(request).cache_protected_len)
        known = seen.rows.get(slot)
        earlier = known[2] if known is not None and known[0] == stay else None
        before = earlier if known is not None and known[1] == nodes else None
        prefix = None if path is None else path.numpy()
        protected = min(max(held(request).cache_protected_len, 0), count)
        allocated = held(request).kv_allocated_len
        rows.append(Row(slot, entries, protected, before, prefix, owners(slot), earlier, allocated))
        longer = before is not None and before.size > entries.size
        kept[slot] = (stay, nodes, before if longer else entries)
    wrong = check_rows(rows, page, end)
    if wrong and (short := _short_of_its_nodes(wrong[0], rows, live, cache)) is not None:
        seen.rows, seen.lost = {}, True
        slots = [row.slot for row in rows]
        counted, nodes = short
        one = WrongEntry("unlike", wrong[0].row, 0, counted, nodes)
        had = {"as_before": None, "account": None, "counter": PROTECTED}
        report_wrong(scheduler, (one,), COUNTER, site, Structure.REQUEST_COUNTERS, [None], made, slots, had=had)
    elif wrong:
        first, row = wrong[0], rows[wrong[0].row]
        kinds = _row_defects(rows, wrong, allocator, page, end)
        slots = [one.slot for one in rows]
        had = _had(first, rows) | _became(first, row, scheduler, page)
        if first.why == "prefix":
            had |= {"first_look": row.earlier is None and not seen.lost, **_of_both(first, scheduler, page, "node")}
            had |= owner_of(scheduler, first.value // page)
            had |= broken_nodes(cache) | _in_another_order(row)
        elif first.why == "changed":
            had |= _of_both(first, scheduler, page, "had") | owner_of(scheduler, first.value // page)
            kept = owner_of(scheduler, first.expected // page) if first.expected is not None else {}
            had |= {"had_page_owner": kept["page_owner"]} if "page_owner" in kept else {}
        elif first.why == "shared" and first.column < row.protected:
            had |= given_up(scheduler, first.value // page, nodes_are_gone=row.prefix is None)
        if role == "target":
            had |= new_slots_of(made, row.slot, pool[row.slot])
        table, seen.rows, seen.lost = _table_of(rows), {}, True
        # What an insert wrote back into the row stands in its nodes as well, and came from there.
        of_node = first.why == "moved" and first.column < row.protected
        structure = Structure.TREE_NODE if of_node else Structure.REQUEST_ROW
        report_wrong(scheduler, wrong, ROW, site, structure, kinds, made, slots, table, had, role)
    else:
        # Those that are not looked at now may come again; a slot given anew has another request.
        seen.rows.update(kept)


def _in_another_order(row: Row) -> dict[str, Any]:
    """Return whether a row has the very slots of its nodes in another order, where both are as long."""
    own = row.entries[: row.protected]
    if row.prefix is None or own.size != row.prefix.size:
        return {}
    return {"same_slots": bool(np.array_equal(np.sort(own), np.sort(row.prefix)))}


def _short_of_its_nodes(
    first: WrongEntry, rows: Sequence[Row], live: Sequence[Any], cache: Any
) -> tuple[int, int] | None:
    """Return how many tokens a request counts as the cache's, and how many its nodes have; None where these agree.

    A page of the cache's in its row is right where its nodes have that very page for that token: then it is the count
    that does not reach them.
    """
    if first.why != "owner":
        return None
    path, counted = path_slots(cache, live[first.row]), rows[first.row].protected
    if path is None or not counted <= first.column < path.numel() or int(path[first.column]) != first.value:
        return None
    return counted, int(path.numel())


def _check_rows_differ(scheduler: Any, live: Sequence[Any], site: str, made: Any, role: str | None) -> None:
    """Find a row that two running requests have: each of them writes over the other's."""
    slots = [held(request).req_pool_idx for request in live]
    again = [WrongEntry("same row", at, 0, slot) for at, slot in enumerate(slots) if slot in slots[:at]]
    if again:
        kinds = [Defect.DUPLICATE] * len(again)
        report_wrong(scheduler, again, ROW_INDEX, site, Structure.ROW_INDICES, kinds, made, slots, role=role)


def _owners(scheduler: Any, requests: Sequence[Any]) -> Callable[[int], np.ndarray | None]:
    """Return what gives a request slot its row of owners, by the ledger; None where that is off."""
    if not current.switched_on("leak-ledger"):
        return lambda slot: None
    ledger = ledger_of(scheduler.token_to_kv_pool_allocator)
    ledger.log.drain()
    pages, generations = ledger.pools["full"], generations_of(scheduler.req_to_token_pool)
    used = np.isin(pages.last_event, (LastEvent.HANDED_OUT, LastEvent.OWNED, LastEvent.FREE_ASKED))

    def of(slot: int) -> np.ndarray:
        return np.where(used & (pages.generation == generations[slot]), pages.owner, NO_ROW)

    return of


def _became(first: WrongEntry, row: Row, scheduler: Any, page: int) -> dict[str, Any]:
    """Return the last event of a page that the ledger says is not the request's; nothing of another kind of fault.

    `page_was_own`: the request had that page, in this life of its row, and has one page less than it has tokens for. A
    stale entry would leave the page that belongs there among its own. `by_request_slot`: the request that gave it back.
    """
    if first.why != "owner" or row.owners is None:
        return {}
    ledger, number = ledger_of(scheduler.token_to_kv_pool_allocator), first.value // page
    pages = ledger.pools["full"]
    generation = generations_of(scheduler.req_to_token_pool)[row.slot]
    own = (int(pages.owner[number]), int(pages.generation[number])) == (row.slot, generation)
    wanted = 0 if row.allocated is None else -(-row.allocated // page) + -row.protected // page
    lacks_one = np.count_nonzero(row.owners == row.slot) + 1 == wanted
    return {
        "page_event": LastEvent(pages.last_event[number]).name.lower(),
        "page_was_own": bool(own and lacks_one),
        "by_request_slot": ledger.giver_of(number),
    }


def _of_both(first: WrongEntry, scheduler: Any, page: int, other: str) -> dict[str, Any]:
    """Return the last events of the page that a row has and of the one that it should have, by the ledger.

    Args:
        first: The entry that is wrong.
        scheduler: Whose pools they are.
        page: Tokens of a page.
        other: Who says which page it should be: the cache's node, or the row itself as it was before ("had").
    """
    if first.expected is None or not current.switched_on("leak-ledger"):
        return {}
    ledger = ledger_of(scheduler.token_to_kv_pool_allocator)
    ledger.log.drain()
    pages = ledger.pools["full"]
    places = {"page_event": first.value // page, f"{other}_page_event": first.expected // page}
    return {
        name: LastEvent(pages.last_event[number]).name.lower()
        for name, number in places.items()
        if 0 < number <= pages.pages
    }


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
            # What came since then differs from nothing.
            and not (row.before is not None and at >= row.before.size and (number, at // page) in pages)
        }
        for number, row in enumerate(rows)
    ]
    # What a row had before is its own, wherever it stands now.
    had = [set() if row.before is None else set((row.before[: row.entries.size] // page).tolist()) for row in rows]
    found = []
    for one in wrong:
        if _node_differs(one, rows):
            # The row is as it was, so that the other of the two is what is wrong.
            one = replace(one, value=one.expected or 0, expected=one.value)
        expected = None if one.expected is None else one.expected // page
        twin = twin_of(allocator, one.expected)
        foreign = set().union(*(pages for number, pages in enumerate(held) if number != one.row))
        value = -1 if one.value < 0 else one.value // page
        own = held[one.row] | had[one.row] if one.why != "twice" else {value}
        owned = rows[one.row].owners
        if one.why == "owner" and owned is not None and value not in free:
            foreign = foreign | {value}
        known = None if twin is None else twin // page
        found.append(defect_of(value, expected, end // page, own, foreign, free, known))
    return or_swapped(wrong, found)


def _had(first: WrongEntry, rows: Sequence[Row]) -> dict[str, Any]:
    """Return what the place had at the check before, if that is known.

    Where the prefix cache has got the row's tokens since, only a row and its nodes that differ can be held against it.
    """
    row = rows[first.row]
    before = row.earlier if first.why in ("prefix", "moved") else row.before
    had = int(before[first.column]) if before is not None and first.column < before.size else None
    return {"row_had": had, "as_before": None if had is None else had == first.value}


def _node_differs(one: WrongEntry, rows: Sequence[Row]) -> bool:
    return one.why == "prefix" and _had(one, rows)["as_before"] is True


def _table_of(rows: Sequence[Row]) -> dict[str, TensorPayload]:
    """Return the rows as one tensor, int64 [rows, tokens], -1 behind a row's end."""
    table = np.full((len(rows), max(row.entries.size for row in rows)), NO_ROW, np.int64)
    for number, row in enumerate(rows):
        table[number, : row.entries.size] = row.entries
    return {"rows": TensorPayload.from_array(table)}
