"""Reads the nodes of SGLang's prefix caches; 0.5.23 has one cache for all models, whose tree is in Rust."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import torch

READABLE = ("RadixCache", "SWARadixCache", "ChunkCache", "SWAChunkCache", "UnifiedRadixCache")
"""Classes of caches whose holders of pages can be told."""


@dataclass(frozen=True)
class CachedRun:
    """A run of slots that a prefix cache holds for consecutive tokens: a node, or a part of one.

    Attributes:
        value: Slots of the full pool, int64 [n].
        swa_tombstone: Its slots of the sliding window were given up.
        locked: Somebody has locked it.
        node: The node, where it is an object of Python's.
    """

    value: torch.Tensor
    swa_tombstone: bool
    locked: bool
    node: Any = None


def unreadable_cache(cache: Any) -> str:
    """Returns why the holders of a prefix cache's pages cannot be told, as a clause; empty if they can.

    Args:
        cache: A prefix cache, without the wrapper of streaming sessions.
    """
    kind = type(cache).__name__
    if kind not in READABLE:
        return f"{kind} is not one of {', '.join(READABLE)}"
    core = getattr(cache, "tree_core", None)
    if kind == "UnifiedRadixCache" and core is None:
        return f"{kind} of this release keeps its nodes in another form"
    if core is not None and (core.enable_hicache or core.enable_external_cache_linker):
        return f"{kind} moves pages to the host or to another store"
    if core is not None and cache.supports_mamba():
        return f"{kind} holds the states of a mamba model too"
    return ""


def keeps_prefixes(cache: Any) -> bool:
    """Returns whether a prefix cache keeps what it is given; without one SGLang has a cache of chunks, or an idle tree.

    Args:
        cache: A prefix cache, without the wrapper of streaming sessions.
    """
    return not type(cache).__name__.endswith("ChunkCache") and not getattr(cache, "disable", False)


def runs_of(cache: Any) -> list[CachedRun]:
    """Returns everything that a prefix cache holds, in no particular order.

    Args:
        cache: One of READABLE, without the wrapper of streaming sessions.
    """
    core = getattr(cache, "tree_core", None)
    return list(_nodes(cache)) if core is None else list(_walked(core))


def retain_window(cache: Any) -> int | None:
    """Returns behind how many of a request's last tokens its slots of the sliding window are given back.

    Args:
        cache: A prefix cache; of 0.5.23 one that may keep a draft's wider window.
    """
    window = getattr(cache, "swa_retain_window", None) or getattr(cache, "sliding_window_size", None)
    return window if isinstance(window, int) and window > 0 else None


def is_locked_elsewhere(request: Any) -> bool:
    """Return whether a request's lock is on another node than its last; False where it keeps none, as before 0.5.23."""
    lock: Any = getattr(request, "lock", None)
    return hasattr(lock, "node") and lock.node != request.last_node


def path_slots(cache: Any, request: Any) -> torch.Tensor | None:
    """Return the slots that a prefix cache's nodes hold for the first tokens of a request, in their order, int64 [n].

    Empty where it holds the root alone; None where the request has no node, or one that the cache has given up.

    Args:
        cache: One of READABLE, without the wrapper of streaming sessions.
        request: A `Req` that runs.
    """
    return paths_of(cache, [request])[0]


def paths_of(cache: Any, requests: Sequence[Any]) -> list[torch.Tensor | None]:
    """Return the `path_slots` of several requests; the device is asked once for all of them."""
    paths = [_path(cache, request) for request in requests]
    known = [path for path in paths if path is not None]
    if not known:
        return paths
    slots = iter(_flat(torch.cat(known)).split([path.numel() for path in known]))
    return [None if path is None else next(slots) for path in paths]


def path_length(cache: Any, request: Any) -> int | None:
    """Return how many slots `path_slots` has, without asking the device; None where it is None."""
    path = _path(cache, request)
    return None if path is None else path.numel()


def _path(cache: Any, request: Any) -> torch.Tensor | None:
    """Return `path_slots` as it lies in the cache, on its device."""
    node = request.last_node
    if node is None:
        return None
    if getattr(cache, "tree_core", None) is not None:
        try:
            return torch.as_tensor(cache.path_device_indices(node)).flatten()
        except KeyError:
            return None
    parts = []
    while getattr(node, "parent", None) is not None:
        if node.value is None:
            return None
        parts.append(torch.as_tensor(node.value).flatten())
        node = node.parent
    return torch.cat(parts[::-1]) if parts else torch.empty(0, dtype=torch.int64)


def key_of_path(cache: Any, request: Any) -> list[int] | None:
    """Return the tokens by which a prefix cache found the first tokens of a request, in their order.

    None where its tree is in Rust, or the request has no node.

    Args:
        cache: One of READABLE, without the wrapper of streaming sessions.
        request: A `Req` that runs.
    """
    core: Any = getattr(cache, "tree_core", None)
    if core is not None and not hasattr(core, "_node_arena"):
        return None
    node = request.last_node if core is None else core._node_arena.get(request.last_node)
    parts: list[list[int]] = []
    while getattr(node, "parent", None) is not None:
        parts.append(key_tokens(node.key))
        node = node.parent
    return [token for part in parts[::-1] for token in part] if parts else None


def key_tokens(key: Any) -> list[int]:
    """Return the tokens of a node's key; of one of pairs the first of each.

    Args:
        key: A `RadixKey`, or None.
    """
    return [] if key is None else list(key.token_ids[: len(key)])


def inserted_path(cache: Any, result: Any) -> torch.Tensor | None:
    """Return the slots that a prefix cache has for the tokens that were just put into it, where they lie: int64 [n].

    None of the caches before 0.5.23, whose insert does not say where it ended.

    Args:
        cache: A prefix cache, without the wrapper of streaming sessions.
        result: `InsertResult`.
    """
    if getattr(cache, "tree_core", None) is None:
        return None
    return cache.path_device_indices(result.last_device_node)


def inserted_swa(cache: Any, result: Any) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Return what the node where an insert ended has of both pools: full slots and the window's, int64 [n] each.

    None without a window, where the node has given that up, and of caches before 0.5.23, which keep full ones alone.

    Args:
        cache: A prefix cache, without the wrapper of streaming sessions.
        result: `InsertResult`.
    """
    core = getattr(cache, "tree_core", None)
    if core is None or not hasattr(core, "get_component_device_value") or not cache.supports_swa():
        return None
    from gemma4_runtime.release import ComponentType

    node = result.last_device_node
    if core.is_root(node):
        return None
    full, swa = (core.get_component_device_value(node, kind) for kind in (ComponentType.FULL, ComponentType.SWA))
    return None if full is None or swa is None else (_flat(full), _flat(swa))


def swa_evicted_of(params: Any) -> int:
    """Return how many of the first tokens that are put into a cache have no slot of the sliding window any more.

    Args:
        params: `InsertParams`.
    """
    if not hasattr(params, "get_evicted_seqlen"):
        return params.swa_evicted_seqlen
    from gemma4_runtime.release import ComponentType

    return params.get_evicted_seqlen(ComponentType.SWA)


def with_swa_evicted(params: Any, length: int) -> Any:
    """Return the same parameters with another number of such tokens.

    Args:
        params: `InsertParams`.
        length: How many the cache is to be told of.
    """
    if not hasattr(params, "get_evicted_seqlen"):
        return replace(params, swa_evicted_seqlen=length)
    from gemma4_runtime.release import ComponentType

    return replace(params, component_evicted_seqlens={**params.component_evicted_seqlens, ComponentType.SWA: length})


def sessions_of(cache: Any) -> list[Any]:
    """Returns what has the row and the lengths of each session that keeps one between its requests.

    Args:
        cache: A prefix cache, with its wrapper of streaming sessions if it has one.
    """
    if hasattr(cache, "session_records"):
        return [record for record in cache.session_records().values() if record.holds_kv]
    return [slot for slot in getattr(cache, "slots", {}).values() if slot.is_holding_kv]


def _nodes(cache: Any) -> Iterator[CachedRun]:
    root = getattr(cache, "root_node", None)
    waiting = list(root.children.values()) if root is not None else []
    while waiting:
        node = waiting.pop()
        waiting.extend(node.children.values())
        if node.value is not None:
            locks = (node.full_lock_ref, node.swa_lock_ref) if hasattr(node, "full_lock_ref") else (node.lock_ref,)
            yield CachedRun(node.value, getattr(node, "swa_tombstone", False), any(locks), node)


def _walked(core: Any) -> Iterator[CachedRun]:
    """Yield runs from a tree core's own walk, which it has for SGLang's KV canary: no node is an object of Python's.

    A new run begins where the token's slot before it is not the one before it in the walk, and where what is known of
    the slots changes.
    """
    every = core.walk_for_kv_canary(False, False)
    slots = _flat(every.slot_indices)
    if not slots.numel():
        return
    before = _flat(every.prev_slot_indices)
    unlocked = _flat(core.walk_for_kv_canary(True, False).slot_indices)
    resident = _flat(core.walk_for_kv_canary(False, True).slot_indices)
    tombstone, locked = ~torch.isin(slots, resident), ~torch.isin(slots, unlocked)
    # What lies in the window has a lock of its own, which this walk goes by.
    locked |= ~tombstone & ~torch.isin(slots, _flat(core.walk_for_kv_canary(True, True).slot_indices))
    breaks = (before[1:] != slots[:-1]) | (tombstone[1:] != tombstone[:-1]) | (locked[1:] != locked[:-1])
    starts = [0, *(torch.nonzero(breaks).flatten() + 1).tolist(), slots.numel()]
    for start, stop in pairwise(starts):
        yield CachedRun(slots[start:stop], bool(tombstone[start]), bool(locked[start]))


def _flat(slots: Any) -> torch.Tensor:
    return torch.as_tensor(slots).flatten().cpu().to(torch.int64)
