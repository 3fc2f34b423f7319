"""Reads which nodes of 0.5.23's prefix cache are locked for their sliding window, in Python's tree and in Rust's."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch

from gemma4_runtime.release.prefix_caches import retain_window


def unlocked_windows(cache: Any) -> np.ndarray | None:
    """Return the full slots of all nodes that have their window and no lock on it: int64 [n].

    None before 0.5.23, and without a window.

    Args:
        cache: A prefix cache, without the wrapper of streaming sessions.
    """
    core: Any = getattr(cache, "tree_core", None)
    if not hasattr(core, "walk_for_kv_canary") or not cache.supports_swa():
        return None
    return _host(core.walk_for_kv_canary(unlocked_only=True, swa_resident_only=True).slot_indices)


def window_is_locked(cache: Any, request: Any, unlocked: np.ndarray) -> bool | None:
    """Return whether the node of a request's lock has a lock of its window; None where it has no window, or no node.

    Args:
        cache: As above.
        request: A `Req` with a lock.
        unlocked: What `unlocked_windows` returned.
    """
    from gemma4_runtime.release import ComponentType

    core, node = cache.tree_core, request.lock.node
    try:
        if core.is_root(node):
            return None
        full, swa = (core.get_component_device_value(node, kind) for kind in (ComponentType.FULL, ComponentType.SWA))
    except KeyError:
        return None
    if full is None or swa is None or not len(full):
        return None
    return not np.isin(_host(full), unlocked).any()


def holders_of_window(cache: Any, request: Any, requests: Iterable[Any]) -> int | None:
    """Return how many other requests hold the window of the node that a request's lock is on; None: not known.

    A lock goes from its node up until it has as many tokens as the window.

    Args:
        cache: As above.
        request: A `Req` with a lock.
        requests: Those that may hold a lock.
    """
    window, node = retain_window(cache), request.lock.node
    locks = {id(lock): lock for one in requests if (lock := getattr(one, "lock", None)) is not None}
    held = [lock for lock in locks.values() if lock is not request.lock and not lock.swa_released]
    try:
        paths = cache.tree_core.collect_path_info([lock.node for lock in held])
    except KeyError:
        return None
    # A cache may lock by a draft's window, which is no smaller.
    return sum(
        any(one.node_id == node and path[-1].path_end - one.path_end < (window or 0) for one in path) for path in paths
    )


def _host(slots: Any) -> np.ndarray:
    return torch.as_tensor(slots).to("cpu", torch.int64).reshape(-1).numpy()
