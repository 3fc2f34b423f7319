"""Reads where every page is from SGLang's own structures, at a moment when no step is half done.

| place                 | full pool                                    | SWA pool                                      |
|-----------------------|----------------------------------------------|-----------------------------------------------|
| free                  | free_pages and release_pages                 | the same of the SWA allocator                 |
| pending               | free_group, while one is open                | -                                             |
| tree node             | its value                                    | what the mapping has for it, if no tombstone  |
| request, session slot | row [cache_protected_len, kv_allocated_len)  | the mapping from swa_evicted_seqlen on        |

A page counts as held from the first of its tokens on, so a row's last page is whole: ceil(kv_allocated_len). Rows of
the tree's own tokens, [0, cache_protected_len), belong to the tree.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from gemma4_runtime.checks.page_census import Whereabouts
from gemma4_runtime.checks.swa_mapping_census import SlotPairs, held_swa_pages
from gemma4_runtime.release import SWATokenToKVPoolAllocator
from gemma4_runtime.release.allocators import free_page_lists, pending_slots
from gemma4_runtime.release.prefix_caches import (
    keeps_prefixes,
    retain_window,
    runs_of,
    sessions_of,
    unreadable_cache,
)
from gemma4_runtime.release.requests import committed_freed, held, swa_evicted, swa_kept_until
from gemma4_runtime.release.tree_links import Beside, broken_holds, broken_of
from gemma4_runtime.slot_texts import texts_of

REQUEST_SLOTS = "requests"
"""The name of the pool of request slots, which is counted like a pool of pages."""

TREE = 0
"""The prefix cache as a holder; request slot 0 is for padding and holds nothing."""


@dataclass(frozen=True)
class Row:
    """A private row range: tokens [start, end) of request slot `slot`, with SWA slots from `swa_from` on.

    Tokens below `swa_until` have theirs too, whatever the window has left.
    """

    slot: int
    start: int
    end: int
    swa_from: int
    session: bool = False
    swa_until: int = 0


@dataclass(frozen=True)
class Reading:
    """Everything that an audit looks at, on the host.

    Attributes:
        pools: Where the pages of each pool are, request slots among them.
        pairs: Slots and what the mapping has for them; None without an SWA pool.
        locked: Full pages of tree nodes that somebody has locked.
        private_pages: How many pages requests hold, by pool.
        session_pages: The same of sessions.
        holders: Who the holders of full pages are, in the order of `held`: TREE, or the request slot of a row.
        mapping: The whole full-to-SWA mapping; None without an SWA pool.
        nodes: Each node that has its sliding window, with its pages in order, of a cache whose nodes are Python's.
        evicted: By request slot, how many of its first tokens a request counts as gone from the sliding window.
        caches_prefixes: Whether the prefix cache keeps what it is given.
        edges: By request slot, where that ends in its row: the first column in pages, and the full pages from there on.
        left_window: By request slot, how many of its first tokens no later token sees through the sliding window.
        rows: How many rows req_to_token has, that of slot 0 included.
        cached_pages: How many pages nodes of the prefix cache hold, by pool.
        stray_entries: By request slot, of its own entries of the row that are of no page: the first one's token, how
            many there are, and how many of pages follow the first.
        counted: By request slot, what a request counts: tokens that are committed, and that have slots.
        broken: What is wrong with nodes of the prefix cache, in the words of `checks.tree_links`, and with how many.
    """

    pools: tuple[Whereabouts, ...]
    pairs: SlotPairs | None
    locked: np.ndarray
    private_pages: dict[str, int]
    session_pages: dict[str, int]
    holders: tuple[int, ...] = ()
    mapping: np.ndarray | None = None
    nodes: tuple[tuple[Any, np.ndarray], ...] = ()
    evicted: Mapping[int, int] = field(default_factory=dict)
    caches_prefixes: bool = True
    edges: Mapping[int, tuple[int, np.ndarray]] = field(default_factory=dict)
    left_window: Mapping[int, int] = field(default_factory=dict)
    rows: int = 0
    cached_pages: Mapping[str, int] = field(default_factory=dict)
    broken: Mapping[str, int] = field(default_factory=dict)
    stray_entries: Mapping[int, tuple[int, int, int]] = field(default_factory=dict)
    counted: Mapping[int, tuple[int, int]] = field(default_factory=dict)

    @property
    def running(self) -> set[int]:
        """Return the request slots that requests or sessions have, whatever they count as theirs."""
        return (set(self.holders) - {TREE}) | {slot for slot in self.evicted if slot is not None}


def unreadable(tree_cache: Any) -> str | None:
    """Return why the holders of this prefix cache cannot be told, None if they can."""
    return unreadable_cache(_inner(tree_cache)) or None


def read(allocator: Any, req_to_token_pool: Any, tree_cache: Any, requests: Iterable[Any]) -> Reading:
    """Read it all. Copies free lists, tree values, private rows and the mapping to the host, and waits for them.

    Args:
        allocator: Of the pools.
        req_to_token_pool: Has the rows.
        tree_cache: The prefix cache.
        requests: Every `Req` that may hold a request slot, each once.
    """
    page = allocator.page_size
    requests = list(requests)
    table = req_to_token_pool.req_to_token
    claimed = [*_rows(requests, page), *_session_rows(tree_cache, {held(r).req_pool_idx for r in requests}, page)]
    rows = [_within(row, table.shape[1]) for row in claimed]
    nodes = runs_of(_inner(tree_cache))
    node_slots = _to_host([node.value for node in nodes])
    edges = list(_edges(requests, page, table.shape[1]))
    of_edges = [table[slot, column * page : end : page] for slot, column, end in edges]
    on_host = _to_host([*(table[row.slot, row.start : row.end] for row in rows), *of_edges])
    row_slots, edge_slots = on_host[: len(rows)], on_host[len(rows) :]
    holding = [np.unique(slots // page) for slots in (*node_slots, *row_slots)]
    repeated = [_repeated(slots[::page] // page) for slots in (*node_slots, *row_slots)]
    inner = _full(allocator)
    pending = _to_host(pending_slots(allocator))
    full = Whereabouts(
        "full",
        inner.size // page,
        _free(inner),
        np.unique(np.concatenate([np.empty(0, np.int64), *pending]) // page),
        [np.concatenate(parts) if parts[1].size else parts[0] for parts in zip(holding, repeated, strict=True)],
    )
    pools, pairs, mapping, private_swa, session_swa = [full], None, None, 0, 0
    cached = {"full": sum(pages.size for pages in holding[: len(nodes)])}
    if isinstance(allocator, SWATokenToKVPoolAllocator):
        mapping = allocator.full_to_swa_index_mapping.cpu().numpy()
        node_pairs = _pairs(mapping, node_slots, [[not node.swa_tombstone] for node in nodes])
        live = [_has_swa(np.arange(row.start, row.end), row) for row in rows]
        row_pairs = _pairs(mapping, row_slots, live)
        session = np.repeat([row.session for row in rows], [row.end - row.start for row in rows]).astype(bool)
        swa_held = [held_swa_pages(_join(node_pairs, row_pairs), page)]
        cached["swa"] = held_swa_pages(node_pairs, page).size
        private_swa = held_swa_pages(_only(row_pairs, ~session), page).size
        session_swa = held_swa_pages(_only(row_pairs, session), page).size
        swa = allocator.swa_attn_allocator
        pools.append(Whereabouts("swa", swa.size // page, _free(swa), held=swa_held))
        pairs = _join(node_pairs, row_pairs)
    pools.append(_request_slots(req_to_token_pool, requests, rows))
    texts = texts_of(allocator)
    row_pages = holding[len(nodes) :]
    return Reading(
        tuple(pools),
        pairs,
        _cat([pages for node, pages in zip(nodes, holding, strict=False) if node.locked]),
        {"full": _count(rows, row_pages, session=False), "swa": private_swa},
        {"full": _count(rows, row_pages, session=True), "swa": session_swa},
        (*(TREE for _ in nodes), *(row.slot for row in rows)),
        mapping,
        tuple(
            (node.node, slots[::page] // page)
            for node, slots in zip(nodes, node_slots, strict=False)
            if node.node is not None and not node.swa_tombstone
        ),
        {held(request).req_pool_idx: swa_evicted(request) or 0 for request in requests},
        keeps_prefixes(_inner(tree_cache)),
        {edge[0]: (edge[1], slots // page) for edge, slots in zip(edges, edge_slots, strict=True)},
        dict(_left_window(requests, retain_window(_inner(tree_cache)))),
        int(table.shape[0]),
        cached,
        broken_of(_inner(tree_cache), Beside(None if texts is None else texts.unlike, mapping))
        | broken_holds(_inner(tree_cache), requests),
        dict(_stray_entries(rows, row_slots, row_pages, page, full.pages)),
        {
            one.req_pool_idx: (one.kv_committed_len, one.kv_allocated_len)
            for one in map(held, requests)
            if one.req_pool_idx is not None
        },
    )


def _rows(requests: Sequence[Any], page: int) -> Iterator[Row]:
    for request in requests:
        if held(request).req_pool_idx is not None and not committed_freed(request):
            yield _row(held(request), page, session=False)


def _edges(requests: Sequence[Any], page: int, width: int) -> Iterator[tuple[int, int, int]]:
    """Yield request slot, first column in pages and last token of the row's part where its window may begin."""
    for request in requests:
        if held(request).req_pool_idx is not None and not committed_freed(request):
            counted = min(max(swa_evicted(request) or 0, 0), width) // page
            column = max(counted - 2, 0)
            end = min((counted + 4) * page, held(request).kv_committed_len, width)
            yield held(request).req_pool_idx, column, max(end, column * page)


def _stray_entries(
    rows: Sequence[Row], slots: Sequence[np.ndarray], held_pages: Sequence[np.ndarray], page: int, pages: int
) -> Iterator[tuple[int, tuple[int, int, int]]]:
    for row, entries, sorted_pages in zip(rows, slots, held_pages, strict=True):
        if sorted_pages.size and (sorted_pages[0] < 1 or sorted_pages[-1] > pages):
            strange = (entries < page) | (entries >= (pages + 1) * page)
            first = int(strange.argmax())
            yield row.slot, (row.start + first, int(strange.sum()), int((~strange[first:]).sum()))


def _left_window(requests: Sequence[Any], window: int | None) -> Iterator[tuple[int, int]]:
    for request in requests if window else ():
        if held(request).req_pool_idx is not None and not committed_freed(request):
            yield held(request).req_pool_idx, max(held(request).kv_committed_len - (window or 0), 0)


def _session_rows(tree_cache: Any, active: set[int | None], page: int) -> Iterator[Row]:
    for record in sessions_of(tree_cache):
        if record.req_pool_idx not in active:
            yield _row(record, page, session=True)


def _row(record: Any, page: int, session: bool) -> Row:
    start, end = record.cache_protected_len, record.kv_allocated_len
    kept = swa_kept_until(record, page)
    return Row(record.req_pool_idx, start, max(start, end), swa_evicted(record) or 0, session, kept)


def _has_swa(tokens: np.ndarray, row: Row) -> np.ndarray:
    return (tokens >= row.swa_from) | (tokens < row.swa_until)


def _within(row: Row, width: int) -> Row:
    """Return the part of a range that its row has: a request's own counters may be what is wrong."""
    start = min(max(row.start, 0), width)
    return replace(row, start=start, end=min(max(row.end, start), width))


def _request_slots(pool: Any, requests: Sequence[Any], rows: Sequence[Row]) -> Whereabouts:
    taken = [held(request).req_pool_idx for request in requests if held(request).req_pool_idx is not None]
    taken += [row.slot for row in rows if row.session]
    free = np.array(pool.free_slots, np.int64)
    return Whereabouts(REQUEST_SLOTS, pool.size, free, held=[np.array([slot]) for slot in taken])


def _inner(tree_cache: Any) -> Any:
    """Return the prefix cache that holds the nodes: streaming sessions wrap one."""
    return getattr(tree_cache, "inner", tree_cache)


def _full(allocator: Any) -> Any:
    return getattr(allocator, "full_attn_allocator", allocator)


def _free(inner: Any) -> np.ndarray:
    return torch.cat(free_page_lists(inner)).cpu().numpy()


def _to_host(tensors: Sequence[torch.Tensor]) -> list[np.ndarray]:
    """Return one copy for all of them."""
    if not tensors:
        return []
    flat = torch.cat([tensor.to(torch.int64) for tensor in tensors]).cpu().numpy()
    return np.split(flat, np.cumsum([tensor.numel() for tensor in tensors])[:-1])


def _cat(arrays: Sequence[np.ndarray]) -> np.ndarray:
    return np.concatenate([np.empty(0, np.int64), *arrays])


def _pairs(mapping: np.ndarray, slots: Sequence[np.ndarray], live: Sequence[Any]) -> SlotPairs:
    full = _cat(slots)
    flags = [np.broadcast_to(flag, part.shape) for flag, part in zip(live, slots, strict=True)]
    return SlotPairs(full, mapping[np.clip(full, 0, mapping.size - 2)], np.concatenate([np.empty(0, bool), *flags]))


def _join(one: SlotPairs, other: SlotPairs) -> SlotPairs:
    return SlotPairs(
        np.concatenate((one.full, other.full)),
        np.concatenate((one.swa, other.swa)),
        np.concatenate((one.live, other.live)),
    )


def _only(pairs: SlotPairs, chosen: np.ndarray) -> SlotPairs:
    return SlotPairs(pairs.full[chosen], pairs.swa[chosen], pairs.live[chosen])


def _repeated(pages: np.ndarray) -> np.ndarray:
    """Return each page once for every further place that it has in the order of one holder's tokens."""
    _, first = np.unique(pages, return_index=True)
    return np.delete(pages, first)


def _count(rows: Sequence[Row], pages: Sequence[np.ndarray], session: bool) -> int:
    return sum(held.size for row, held in zip(rows, pages, strict=True) if row.session is session)


class TreeMemory:
    """Remembers each node's pages from one audit to the next: a node keeps them, in their order, while it lives.

    A node that lost its sliding window takes the pages of whoever computes its tokens again, so only nodes that have
    theirs at both audits are compared; one that was split is another node, or a shorter one.
    """

    def __init__(self) -> None:
        # The node itself, not its id alone: an id is given again once its node is gone.
        self._before: dict[int, tuple[Any, np.ndarray]] = {}

    def moved(self, nodes: Iterable[tuple[Any, np.ndarray]]) -> np.ndarray:
        """Return the pages that stand in a node where another one stood, and stood in the cache before: int64 [pages].

        Args:
            nodes: Each node that has its sliding window, and its pages in the order of its tokens.
        """
        now = {id(node): (node, pages) for node, pages in nodes}
        before, self._before = self._before, now
        changed = [
            pages[pages != before[key][1]]
            for key, (node, pages) in now.items()
            if key in before and before[key][0] is node and before[key][1].size == pages.size
        ]
        strange = np.unique(np.concatenate([np.empty(0, np.int64), *changed]))
        known = np.concatenate([np.empty(0, np.int64), *(pages for _, pages in before.values())])
        return strange[np.isin(strange, known)]
