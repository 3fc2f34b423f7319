"""What `request-rows` asks of the mark by which a lock says that its window was given back: is it so, or not yet."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gemma4_runtime.release.requests import current_batch
from gemma4_runtime.release.window_locks import holders_of_window, unlocked_windows, window_is_locked


def said_of_window_lock(scheduler: Any, cache: Any, request: Any) -> dict[str, Any]:
    """Return, for a dump, whether the window of a request's node is locked, and how many other requests hold it.

    Nothing where that cannot be told. A lock that is only marked as given back (swa_released) is there, and nobody's.

    Args:
        scheduler: Whose requests hold locks.
        cache: The prefix cache, without the wrapper of streaming sessions.
        request: The `Req` whose lock is marked.
    """
    unlocked = unlocked_windows(cache)
    if unlocked is None:
        return {}
    is_locked, others = window_is_locked(cache, request, unlocked), holders_of_window(cache, request, _all(scheduler))
    return {} if is_locked is None or others is None else {"window_is_locked": is_locked, "held_by_others": others}


def without_window_lock(cache: Any, requests: Sequence[Any]) -> Any:
    """Return a request whose lock says that it holds its node's window, which nobody has locked; None if none is.

    Args:
        cache: The prefix cache, without the wrapper of streaming sessions.
        requests: Those that run.
    """
    marked = [one for one in requests if _says_that_it_holds(getattr(one, "lock", None))]
    unlocked = unlocked_windows(cache) if marked else None
    if unlocked is None:
        return None
    return next((one for one in marked if window_is_locked(cache, one, unlocked) is False), None)


def _says_that_it_holds(lock: Any) -> bool:
    if lock is None or lock.swa_released or lock.node != lock.receipt.node_id:
        return False
    return all(part.name != "SWA" for part in getattr(lock.receipt, "skipped_lock_components", ()))


def _all(scheduler: Any) -> list[Any]:
    """Return every request that may hold a lock: in a batch, in a result that waits, in chunks, or waiting."""
    batches = [scheduler.running_batch, scheduler.last_batch, current_batch(scheduler)]
    batches += [batch for batch, _ in getattr(scheduler, "result_queue", None) or ()]
    requests = [one for batch in batches if batch is not None for one in batch.reqs or ()]
    chunked = getattr(scheduler, "chunked_req", None)
    return [*requests, *([] if chunked is None else [chunked]), *(scheduler.waiting_queue or ())]
