"""Reads an allocator's free lists, group of frees and lists of slots, which later releases keep in other places."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch

from gemma4_runtime.releases import at_least, read_as

_STAGED = at_least(read_as(), "0.5.23")
_NOTHING = torch.empty(0, dtype=torch.int64)


def free_page_lists(inner: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the pages that an allocator gives out next, and those that it has back and has not sorted in yet.

    The same objects as long as nothing changed, but for pages that wait to be sorted in by a later release.

    Args:
        inner: The allocator of one pool.
    """
    free, *parts = free_page_parts(inner)
    waiting = parts[0] if len(parts) == 1 else torch.cat(parts) if parts else _NOTHING
    return free, waiting if waiting.device == free.device else waiting.to(free.device)


def free_page_parts(inner: Any) -> tuple[torch.Tensor, ...]:
    """Returns the tensors that `free_page_lists` puts together, as they are.

    Args:
        inner: The allocator of one pool.
    """
    staged = getattr(inner, "staged_pages", None) if _STAGED else None
    return (inner.free_pages, *staged) if staged is not None else (inner.free_pages, inner.release_pages)


def store(pool: Any, layer: Any, slots: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> bool:
    """Stores keys and values as an attention backend does; returns False where it is not known how.

    Args:
        pool: A KV pool, or a pair of them.
        layer: Whose keys and values they are.
        slots: [n] of page 0, which is itself in each pool of a pair.
        keys: [n, key heads, dim of a key].
        values: [n, key heads, dim of a value].
    """
    names = inspect.signature(pool.set_kv_buffer).parameters
    if "loc_info" not in names:
        pool.set_kv_buffer(layer, slots, keys, values, **({"swa_loc": slots} if "swa_loc" in names else {}))
        return True
    if not at_least(read_as(), "0.5.17"):
        return False
    from gemma4_runtime.release import KVWriteLoc

    pool.set_kv_buffer(layer, KVWriteLoc(slots, slots, slots), keys, values)
    return True


def in_free_group(allocator: Any) -> bool:
    """Returns whether frees are held back until their group ends.

    Args:
        allocator: Any of SGLang's.
    """
    return allocator.free_group is not None if _STAGED else not allocator.is_not_in_free_group


def held_back(allocator: Any) -> int:
    """Returns how many slots and pages wait for the end of a group, of the full pool.

    Args:
        allocator: One of a pool pair.
    """
    if not _STAGED:
        return sum(part.numel() for part in allocator.free_group)
    full = allocator.full_attn_allocator
    return sum(part.numel() for part in (*(full.free_group or ()), *getattr(full, "free_page_ids_group", ())))


def pair_available(allocator: Any) -> int | None:
    """Return how many tokens a pair of pools counts as free, which has to be what its pool with fewer has.

    None of one pool, of a pair that counts in a way of its own, and of one whose sliding window is a ring.

    Args:
        allocator: Any that hands out slots.
    """
    from gemma4_runtime.release import SWATokenToKVPoolAllocator

    if getattr(type(allocator), "available_size", None) is not SWATokenToKVPoolAllocator.available_size:
        return None
    return None if getattr(allocator, "swa_req_ring", False) else int(allocator.available_size())


def pending_slots(allocator: Any) -> list[torch.Tensor]:
    """Returns what waits for the end of an open group of frees: slots of the full pool, [n] each.

    Args:
        allocator: One that a scheduler holds.
    """
    if not _STAGED:
        # A group that has ended keeps its list; it is pending only while the group is open.
        return [] if allocator.is_not_in_free_group else list(allocator.free_group)
    full = getattr(allocator, "full_attn_allocator", allocator)
    pages = [ids * full.page_size for ids in getattr(full, "free_page_ids_group", None) or ()]
    return [*(full.free_group or ()), *pages]


def pending_swa_frees(allocator: Any) -> tuple[tuple[Sequence[torch.Tensor], int], ...]:
    """Return what an open group was given by frees of the sliding-window side, and of how many slots each number is.

    In 0.5.13 such frees wait for no group.

    Args:
        allocator: One of a pool pair.
    """
    return (
        (getattr(allocator, "swa_free_group", None) or (), 1),
        (getattr(allocator, "swa_page_ids_group", None) or (), allocator.page_size),
    )


def lists_swa_slots(updater: Any) -> bool:
    """Return whether the lists that FlashInfer's sliding layers read hold slots of the SWA pool.

    Args:
        updater: Of a backend's lists for decodes, or for prefills.
    """
    if _STAGED:
        return updater._swa_kv_pool is not None
    from gemma4_runtime.release import SWATokenToKVPoolAllocator

    return isinstance(updater.token_to_kv_pool_allocator, SWATokenToKVPoolAllocator)
