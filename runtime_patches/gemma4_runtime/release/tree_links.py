"""Reads how the nodes of a prefix cache hang together, where they are objects of Python's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gemma4_runtime.checks.tree_links import Broken, Link, Links, broken_links
from gemma4_runtime.release.prefix_caches import key_tokens, unreadable_cache

_MARKS = 2
"""What a list of nodes may have besides them: the edge of a session's, and how far an eviction has come."""


@dataclass(frozen=True)
class Beside:
    """What a node's slots are held against.

    Attributes:
        unlike: Says of slots and a key's tokens, [n] each, and the place where these begin in their text, how many are
            not those that were stored there; None leaves that out.
        mapping: int64 [slots of the full pool]: the map to the sliding window's; None where there is none.
    """

    unlike: Callable[[np.ndarray, np.ndarray, int], int] | None = None
    mapping: np.ndarray | None = None


def links_of(cache: Any, beside: Beside | None = None) -> Links | None:
    """Return a cache's nodes and lists; None where its tree is in Rust, or it has none.

    Args:
        cache: One of `prefix_caches.READABLE`, without the wrapper of streaming sessions.
        beside: What nodes are held against beside each other. Slots that it needs are copied from the device.
    """
    core = getattr(cache, "tree_core", cache)
    # The tree in Rust has neither a table of nodes nor a root that Python can read.
    root: Any = getattr(core, "root_node", None) if core is cache or hasattr(core, "_node_arena") else None
    if not hasattr(root, "children") or not hasattr(root, "parent"):
        return None
    nodes = list(_walk(root))
    places = Counter(id(child) for one in (root, *(node for node, *_ in nodes)) for child in one.children.values())
    if core is not cache:
        known = {_name(node, root) for node in core._node_arena.values()}
        leaves = {_name(node, root) for node in core.evictable_device_leaves}
        parents = _parents(core._node_arena.values(), root)
        misfiled = {id(node) for node in core._node_arena.values() for node in _misfiled(node, core.page_size)}
        links = [_unified(*one, root, core, beside, id(one[0]) in misfiled) for one in nodes]
        off = {_name(node, root) for one in core.lru_lists.values() for node in _off_list(one)}
        return Links(_placed(links, nodes, places, beside), known, leaves, _windows(core, root), parents, off)
    listed = getattr(core, "evictable_leaves", None)
    leaves = None if listed is None else {_name(node, root) for node in listed}
    swa = getattr(core, "swa_lru_list", None)
    windows = None if swa is None else {_name(node, root) for node in swa.cache.values()}
    parents = _parents([*(listed or ()), *(() if swa is None else swa.cache.values())], root)
    links = [_plain(*one, root, beside) for one in nodes]
    lists = [one for one in (swa, getattr(core, "full_lru_list", None)) if one is not None]
    off = {_name(node, root) for one in lists for node in _off_list(one)}
    return Links(_placed(links, nodes, places, beside), None, leaves, windows, parents, off)


def _placed(
    links: Sequence[Link], nodes: Sequence[tuple[Any, Any, int]], places: Mapping[int, int], beside: Beside | None
) -> list[Link]:
    """Return the links with how often each node is a child, and whether an earlier one has its text and slots."""
    # Where nothing is to be read of the device, which may have died, nor is this.
    twice = set[int]() if beside is None else _texts_twice([node for node, *_ in nodes])
    pairs = zip(links, nodes, strict=True)
    return [
        link
        if places[id(node)] == 1 and id(node) not in twice
        else replace(link, places=places[id(node)], text_twice=id(node) in twice)
        for link, (node, *_) in pairs
    ]


def _texts_twice(nodes: Sequence[Any]) -> set[int]:
    """Return the `id` of each node with a slot that one before it has as well, for the same token."""
    from_full = [(node, _full_value(node)) for node in nodes]
    held = [(node, _host(value)) for node, value in from_full if value is not None and len(value)]
    if not held:
        return set()
    slots = np.concatenate([of_node for _, of_node in held])
    _, first, which = np.unique(slots, return_index=True, return_inverse=True)
    again = np.flatnonzero(first[which] != np.arange(slots.size))
    if not again.size:
        return set()
    owner = np.repeat(np.arange(len(held)), [of_node.size for _, of_node in held])
    begins = np.cumsum([0, *(of_node.size for _, of_node in held)])

    def token(place: int) -> int | None:
        key = key_tokens(held[owner[place]][0].key)
        at = place - begins[owner[place]]
        return key[at] if at < len(key) else None

    pairs = ((int(place), int(first[which[place]])) for place in again)
    return {
        id(held[owner[one]][0]) for one, other in pairs if owner[one] != owner[other] and token(one) == token(other)
    }


def _full_value(node: Any) -> Any:
    """Return a node's slots of the full pool."""
    if not hasattr(node, "component_data"):
        return node.value
    from gemma4_runtime.release import ComponentType

    return node.component_data[ComponentType.FULL].value


def _off_list(listed: Any) -> list[Any]:
    """Return the nodes of a list by which they are evicted that its links do not lead to and back again.

    Args:
        listed: Its `cache` has them by number; its links go from `head` to `tail`, and back by others.
    """

    def walked(begin: Any, end: Any, step: Callable[[Any], Any]) -> list[int]:
        # A loop ends it: no list has more than its nodes and what marks places in it.
        node, ids = step(begin), list[int]()
        while node is not None and node is not end and len(ids) <= len(listed.cache) + _MARKS:
            ids.append(id(node))
            node = step(node)
        return ids

    at = getattr(listed, "_pt", None)
    ahead: Callable[[Any], Any] = (lambda one: getattr(one, listed.nxt)) if at is None else lambda one: one.lru_next[at]
    back: Callable[[Any], Any] = (lambda one: getattr(one, listed.prv)) if at is None else lambda one: one.lru_prev[at]
    there = walked(listed.head, listed.tail, ahead)
    if there == walked(listed.tail, listed.head, back)[::-1] and set(there) >= set(map(id, listed.cache.values())):
        return []
    reached = set(there)

    def is_linked(one: Any) -> bool:
        after, before = ahead(one), back(one)
        return (
            id(one) in reached
            and after is not None
            and before is not None
            and back(after) is one
            and ahead(before) is one
        )

    return [one for one in listed.cache.values() if not is_linked(one)]


def broken_of(cache: Any, beside: Beside | None = None) -> dict[str, int]:
    """Return what is wrong with a cache's nodes, in the words of `Broken`, and with how many; empty where nothing is.

    Args:
        cache: One of `prefix_caches.READABLE`, without the wrapper of streaming sessions.
        beside: As for `links_of`.
    """
    links = links_of(cache, beside)
    if links is None:
        return {}
    return dict(Counter(broken.value for broken, _ in broken_links(links))) | _miscounted(cache)


def _miscounted(cache: Any) -> dict[str, int]:
    """Return by how many tokens what a cache counts as locked is not what its locked nodes have; empty where it is.

    Empty before 0.5.23 too, whose count an audit holds against nodes by itself.
    """
    core: Any = getattr(cache, "tree_core", None)
    if not hasattr(core, "component_protected_size_"):
        return {}
    from gemma4_runtime.release import ComponentType

    nodes = [node for node in core._node_arena.values() if node is not core.root_node]
    found = {}
    for kind, word in ((ComponentType.FULL, Broken.COUNTED), (ComponentType.SWA, Broken.WINDOW_COUNTED)):
        if kind not in core.component_types:
            continue
        parts = [(node, node.component_data[kind]) for node in nodes]
        tokens = core.components_by_type[kind].reclaimable_value_len
        locked = sum(tokens(node) for node, part in parts if part.value is not None and part.lock_ref > 0)
        if apart := abs(core.component_protected_size_[kind] - locked):
            found[word.value] = apart
    return found


def broken_nodes(cache: Any) -> dict[str, str]:
    """Return the same for a dump; nothing where no node is wrong, or none can be read.

    Args:
        cache: As for `broken_of`.
    """
    broken = {} if unreadable_cache(cache) else broken_of(cache)
    return {"tree_broken": said_of_tree(broken)} if broken else {}


def said_of_tree(broken: Mapping[str, int]) -> str:
    """Return what is wrong with nodes of the prefix cache, as a dump has it: words and counts, comma-separated."""
    return ",".join(f"{what}:{count}" for what, count in broken.items())


def broken_holds(cache: Any, requests: Iterable[Any]) -> dict[str, int]:
    """Return which nodes have fewer locks than requests hold them, in the words of `Broken`, and how many.

    A lock is on each node from that of its request up to the root; that of the window up to the node with its stamp.
    Empty where the tree is in Rust, and before 0.5.23, where requests keep no lock.

    Args:
        cache: As for `broken_of`.
        requests: Those that may hold a lock.
    """
    core: Any = getattr(cache, "tree_core", None)
    if not hasattr(core, "_node_arena"):
        return {}
    from gemma4_runtime.release import ComponentType

    every = list({id(one): one for one in requests}.values())
    few, holds, windows = _wrong_locks(core, every), Counter[int](), Counter[int]()
    # Two requests that carry one lock are told by that.
    locks = {id(lock): lock for one in every if (lock := getattr(one, "lock", None)) is not None}
    for lock in locks.values():
        if not _is_anchored(lock):
            # Of which of the two nodes it is a hold nobody knows.
            continue
        path = _path(core, lock.node)
        holds.update(id(node) for node in path)
        if lock.swa_released or ComponentType.SWA not in core.component_types:
            continue
        stamp = lock.receipt.component_lock_uuids.get(ComponentType.SWA)
        stamps = _stamps(path)
        if not stamp or stamp in stamps:
            windows.update(id(node) for node in path[: stamps.index(stamp) + 1 if stamp else None])
    kinds = (
        (ComponentType.FULL, holds, Broken.NO_HOLDS, Broken.FEW_HOLDS),
        (ComponentType.SWA, windows, Broken.NO_WINDOW_HOLDS, Broken.FEW_WINDOW_HOLDS),
    )
    for node in core._node_arena.values():
        for component, held, none, fewer in kinds:
            if held[id(node)] and (locks := node.component_data[component].lock_ref) < held[id(node)]:
                few[fewer if locks else none] += 1
    return {kind.value: few[kind] for kind in Broken if few[kind]}


def _path(core: Any, number: int) -> list[Any]:
    """Return the nodes from one up to below the root; a loop of parents ends it."""
    node, path = core._node_arena.get(number), []
    while node is not None and node is not core.root_node and len(path) < len(core._node_arena):
        path.append(node)
        node = node.parent
    return path


def wrong_locks(cache: Any, requests: Iterable[Any]) -> dict[str, int]:
    """Return how many requests have a lock that is not on the nodes which it names, in the words of `Broken`.

    Its receipt has the node on which it was taken, and the stamp of the one at which its lock of the sliding window
    ends; a release goes from the one to the other, and to the root where none has that stamp.

    Args:
        cache: As for `broken_of`.
        requests: Those that may hold a lock.
    """
    core: Any = getattr(cache, "tree_core", None)
    found = _wrong_locks(core, requests) if hasattr(core, "_node_arena") else Counter[Broken]()
    return {kind.value: found[kind] for kind in Broken if found[kind]}


def _wrong_locks(core: Any, requests: Iterable[Any]) -> Counter[Broken]:
    from gemma4_runtime.release import ComponentType

    found = Counter[Broken]()
    for request in requests:
        lock: Any = getattr(request, "lock", None)
        if lock is None:
            continue
        if not _is_anchored(lock):
            found[Broken.LOCK_ELSEWHERE] += 1
            continue
        stamp = None if lock.swa_released else lock.receipt.component_lock_uuids.get(ComponentType.SWA)
        path = _path(core, lock.node) if stamp else []
        if path and stamp not in _stamps(path):
            found[Broken.STAMP_ELSEWHERE if stamp in _stamps(core._node_arena.values()) else Broken.STAMP_GONE] += 1
    return found


def _is_anchored(lock: Any) -> bool:
    """Return whether a lock is on the node that its receipt was made for."""
    return lock.node == lock.receipt.node_id


def _stamps(path: Iterable[Any]) -> list[Any]:
    """Return the stamps of nodes at which locks of their sliding windows end; None of one without."""
    from gemma4_runtime.release import ComponentType

    return [node.component_data[ComponentType.SWA].metadata.get("uuid") for node in path]


def _walk(root: Any) -> Iterator[tuple[Any, Any, int]]:
    """Yield each node below the root, once, with the one that has it as a child and the tokens of the keys above it.

    A loop ends where it began.
    """
    waiting, seen = [(child, root, 0) for child in root.children.values()], {id(root)}
    while waiting:
        node, above, begins = waiting.pop()
        if id(node) not in seen:
            seen.add(id(node))
            yield node, above, begins
            ends = begins + (0 if node.key is None else len(node.key))
            waiting.extend((child, node, ends) for child in node.children.values())


def _name(node: Any, root: Any) -> int:
    """Return a node's number, which counts from 0 on in SGLang, and so one more: 0 is the root's here."""
    return 0 if node is root else int(node.id) + 1


def _parent(node: Any, root: Any) -> int | None:
    return None if node.parent is None else _name(node.parent, root)


def _parents(nodes: Iterable[Any], root: Any) -> dict[int, int | None]:
    return {_name(node, root): _parent(node, root) for node in nodes if node is not root}


def _spare(node: Any, *values: Any) -> int:
    """Return how many slots the first of a node's values that does not fit its key has beyond it, or lacks."""
    tokens = 0 if node.key is None else len(node.key)
    return next((by for value in values if value is not None and (by := len(value) - tokens)), 0)


def _unlike(node: Any, value: Any, begins: int, beside: Beside | None) -> int:
    """Return of how many tokens of a node's key another was stored in its slot; 0 where that is not asked."""
    if beside is None or beside.unlike is None or value is None:
        return 0
    return beside.unlike(_host(value), np.asarray(key_tokens(node.key), dtype=np.int64), begins)


def _is_given_up(full: Any, beside: Beside | None) -> bool:
    """Return whether the map has nothing for any of a node's slots; False where that is not asked."""
    if beside is None or beside.mapping is None or full is None or not len(full):
        return False
    slots = _host(full)
    return bool(((slots >= 0) & (slots < beside.mapping.size)).all() and not beside.mapping[slots].any())


def _unmapped(full: Any, swa: Any, beside: Beside | None) -> int:
    """Return how many sliding slots of a node the map does not have for its full ones; 0 where that is not asked."""
    if beside is None or beside.mapping is None or full is None or swa is None or len(full) != len(swa):
        return 0
    slots = _host(full)
    inside = (slots >= 0) & (slots < beside.mapping.size)
    return int((beside.mapping[np.where(inside, slots, 0)] != _host(swa))[inside].sum())


def _host(slots: Any) -> np.ndarray:
    return slots.flatten().cpu().numpy().astype(np.int64)


def _misfiled(parent: Any, page: int) -> Iterator[Any]:
    """Yield the children that a node has by another key than their own."""
    for key, child in parent.children.items():
        # One that is shorter than a page is wrong in another way, and has no such key.
        if child.key is not None and len(child.key) >= page and child.key.child_key(page) != key:
            yield child


def _unified(node: Any, above: Any, begins: int, root: Any, core: Any, beside: Beside | None, misfiled: bool) -> Link:
    from gemma4_runtime.release import ComponentType

    full = node.component_data[ComponentType.FULL]
    swa = node.component_data[ComponentType.SWA] if ComponentType.SWA in core.component_types else None
    return Link(
        *(_name(node, root), _name(above, root), _parent(node, root)),
        full=full.value is not None,
        window=swa is not None and swa.value is not None,
        locks=full.lock_ref,
        window_locks=0 if swa is None else swa.lock_ref,
        spare=_spare(node, full.value, None if swa is None else swa.value),
        unlike=_unlike(node, full.value, begins, beside),
        unmapped=0 if swa is None else _unmapped(full.value, swa.value, beside),
        misfiled=misfiled,
        given_up=swa is not None and swa.value is not None and _is_given_up(full.value, beside),
    )


def _windows(core: Any, root: Any) -> Collection[int] | None:
    from gemma4_runtime.release import ComponentType

    if ComponentType.SWA not in core.component_types:
        return None
    return {_name(node, root) for node in core.lru_lists[ComponentType.SWA].cache.values()}


def _plain(node: Any, above: Any, begins: int, root: Any, beside: Beside | None) -> Link:
    full = node.value is not None
    return Link(
        *(_name(node, root), _name(above, root), _parent(node, root)),
        full=full,
        window=full and hasattr(node, "swa_tombstone") and not node.swa_tombstone,
        locks=getattr(node, "full_lock_ref", getattr(node, "lock_ref", 0)),
        window_locks=getattr(node, "swa_lock_ref", 0),
        spare=_spare(node, node.value),
        unlike=_unlike(node, node.value, begins, beside),
        given_up=full and not getattr(node, "swa_tombstone", True) and _is_given_up(node.value, beside),
    )
