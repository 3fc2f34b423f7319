"""Gives one request's row pages of another in the live engine, all of them in range, as stale or torn writes would."""

from collections.abc import Sequence
from typing import Any

from gemma4_runtime.release.requests import held


def own() -> None:
    """Take a page that the request has for itself, once two requests have decoded for a while."""
    _spoil(lambda request: len(request.output_ids) >= 4, lambda request: held(request).cache_protected_len)


def cached() -> None:
    """Take the first page, which the prefix cache holds, before the row was looked at with it."""
    _spoil(lambda request: held(request).cache_protected_len > 0, lambda request: 0)


def _spoil(ready: Any, column: Any) -> None:
    from sglang.srt.managers.scheduler import Scheduler

    original = Scheduler.process_batch_result
    done = []

    def process_batch_result(scheduler: Any, batch: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(scheduler, batch, *args, **kwargs)
        running: Sequence[Any] = [request for request in batch.reqs if not request.finished() and ready(request)]
        if len(running) > 1 and not done:
            done.append(True)
            page, table = scheduler.page_size, scheduler.req_to_token_pool.req_to_token
            mine, others = (held(request).req_pool_idx for request in running[:2])
            at = column(running[0])
            table[mine, at : at + page] = table[others, at : at + page]
        return result

    Scheduler.process_batch_result = process_batch_result
