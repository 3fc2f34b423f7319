"""What `request-rows` asks of a running request's sliding window: what left it is whole pages, and was given back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from gemma4_dumps.structures import Defect, Structure
from gemma4_runtime.checks.request_rows import WrongEntry
from gemma4_runtime.release import envs
from gemma4_runtime.release.requests import held, swa_evicted
from gemma4_runtime.rows.counts import SWA_EVICTED, runs, slots_left
from gemma4_runtime.rows.report import COUNTER, INIT, WINDOW, report_wrong
from gemma4_runtime.settings import Mode

_LAG = 2
"""So many verifications what a request has committed may be ahead of what its eviction went by."""


def check_whole_pages(scheduler: Any, requests: Sequence[Any], made: Any) -> None:
    """Find requests that count a part of a page as gone from their window: SGLang gives back whole ones.

    A session may cut what its request had to any length, and what the prefix cache has of it is its own.

    Args:
        scheduler: Whose requests they are.
        requests: Those of the batch.
        made: The forward's batch.
    """
    page, wrong = scheduler.page_size, []
    for row, request in enumerate(requests):
        evicted = swa_evicted(request) or 0
        if not evicted % page or not runs(request) or getattr(request, "session", None) is not None:
            continue
        if evicted != held(request).cache_protected_len:
            wrong.append(WrongEntry("part of a page", row, 0, evicted, evicted // page * page))
    if not wrong:
        return
    slots, had = [held(request).req_pool_idx for request in requests], {"as_before": None, "counter": SWA_EVICTED}
    kinds = [None] * len(wrong)
    report_wrong(scheduler, wrong, COUNTER, INIT, Structure.REQUEST_COUNTERS, kinds, made, slots, had=had)


def check_none_gone_yet(scheduler: Any, requests: Sequence[Any], made: Any) -> None:
    """Find requests that count more tokens as gone from their window than had slots as their prefill was to begin.

    What was never there is never given back: the prefix cache is given its full pages alone, and nobody has the rest.

    Args:
        scheduler: Whose requests they are.
        requests: Those of the batch.
        made: The forward's batch.
    """
    mode, begins = made.forward_mode, getattr(made, "extend_prefix_lens_cpu", None)
    of_prefill = mode.is_extend() and not mode.is_target_verify() and not mode.is_dllm_extend()
    if not of_prefill or begins is None or len(begins) != len(requests):
        return
    wrong = [
        WrongEntry("gone ahead", row, 0, evicted, int(begin))
        for row, (request, begin) in enumerate(zip(requests, begins, strict=True))
        if (evicted := swa_evicted(request) or 0) > int(begin) and getattr(request, "session", None) is None
    ]
    if not wrong:
        return
    slots, again = [held(request).req_pool_idx for request in requests], requests[wrong[0].row].retraction_count
    had = {"as_before": None, "counter": SWA_EVICTED, "again": again}
    kinds = [Defect.STALE if again else None] * len(wrong)
    report_wrong(scheduler, wrong, COUNTER, INIT, Structure.REQUEST_COUNTERS, kinds, made, slots, had=had)


def check_window(scheduler: Any, requests: Sequence[Any], made: Any) -> None:
    """Find requests whose window moves on while nothing that it has left is given back. From 0.5.23 on.

    SGLang gives back whole pages once so many tokens have left as SGLANG_SWA_EVICTION_INTERVAL says, from a request's
    second decode on, and keeps whole pages of the window. It only costs room, so it is an event that stops nothing. The
    map is asked, of the first, whether its slots are there still; the rest are numbers of the host.

    Args:
        scheduler: Whose requests they are.
        requests: Those of the batch.
        made: The forward's batch: a decode, or a verification.
    """
    mode, cache = made.forward_mode, scheduler.tree_cache
    interval, window = getattr(envs, "SGLANG_SWA_EVICTION_INTERVAL", None), getattr(cache, "swa_retain_window", None)
    if not (mode.is_decode() or mode.is_target_verify()) or interval is None or not window or torch.version.hip:
        return
    if not cache.supports_swa() or cache.supports_auxiliary_swa():
        return
    page, tokens = scheduler.page_size, made.input_ids.numel() // max(len(requests), 1)
    keeps = -(-window // page) * page
    room = keeps + max(page, interval.get()) + page + _LAG * tokens
    wrong = []
    for row, request in enumerate(requests):
        if not runs(request) or request.decode_batch_idx < 2 or cache.swa_retain_floor(request) is not None:
            continue
        evicted, committed = swa_evicted(request) or 0, held(request).kv_committed_len
        # What the prefix cache has of it is not the request's to give back.
        if committed - room > max(evicted, held(request).cache_protected_len):
            wrong.append(WrongEntry("kept", row, 0, evicted, (committed - keeps) // page * page))
    if not wrong:
        return
    first, slots = wrong[0], [held(request).req_pool_idx for request in requests]
    had = {"as_before": None, "window": window, "interval": interval.get()}
    had |= slots_left(scheduler, requests[first.row], first.value, first.expected or 0)
    summary = f"the request in slot {slots[first.row]} counts {first.value} tokens as gone from its sliding window of "
    summary += f"{window}, and {held(requests[first.row]).kv_committed_len} as committed"
    report_wrong(
        *(scheduler, wrong, WINDOW, INIT, Structure.WINDOW_EVICTION, [Defect.LOST] * len(wrong), made, slots),
        had=had,
        summary=summary,
        act=Mode.LOG,
    )
