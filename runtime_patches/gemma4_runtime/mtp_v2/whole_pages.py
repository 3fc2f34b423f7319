"""Optimisation `spec-v2-whole-pages`: under spec v2 slots are given by whole pages, and most steps ask for none.

SGLang tops each request up by the tokens that the last step brought it, in every step: launches, copies to the
device and a search of both pools, for slots of a page that the request has to itself already.
"""

from __future__ import annotations

from typing import Any

from gemma4_runtime.release.requests import held


def round_up(batch: Any, had: list[int], ends: list[int]) -> int:
    """Extend what a step allocates to the end of each page that it touches.

    It takes no page more than SGLang has made sure of, which counts pages.

    Args:
        batch: The batch that is prepared for its next decode.
        had: How many slots each request has.
        ends: How many SGLang would give it. Where they are more than it has, the end of their last page takes their
            place, or of the request's row, here and in the request.

    Returns:
        The slots to allocate, of all requests.
    """
    page = batch.token_to_kv_pool_allocator.page_size
    width = batch.req_to_token_pool.req_to_token.shape[1]
    needed = 0
    for place, (request, before, end) in enumerate(zip(batch.reqs, had, ends, strict=True)):
        if end > before:
            ends[place] = max(end, min(-(-end // page) * page, width))
            held(request).kv_allocated_len = ends[place]
            needed += ends[place] - before
    return needed
