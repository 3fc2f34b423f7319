"""The ratio that holds most of a load. Both ends of a server use it: `gemma4-triage pools` and `swa-ratio-policy`."""

from __future__ import annotations

import math
from collections.abc import Sequence

from gemma4_runtime.pools.arithmetic import TokenBytes, pool_sizes
from gemma4_runtime.pools.demand import Demand, Fit, fit

RATIOS = (*(n / 10_000 for n in range(1, 1000)), *(n / 1000 for n in range(100, 1001)))
"""Three digits: a long context asks for ratios of a few hundredths."""


def fits_at_each_ratio(
    available_bytes: int, cell: TokenBytes, page_size: int, need: Demand, most_tokens: int | None = None
) -> list[Fit]:
    """See `pool_sizes`."""
    return [fit(pool_sizes(available_bytes, cell, ratio, page_size, most_tokens), need) for ratio in RATIOS]


def recommend(fits: Sequence[Fit], need: Demand) -> Fit:
    """Return the fit with most requests of the load, of one or more.

    Among equals the full pool is the one that ends first, because SGLang's admission counts what running requests will
    still write of that one only (schedule_policy.py, `rem_total_token_offset`), and what is left over is left over in
    both pools.
    """
    wanted = need.requests
    best = max(min(one.requests, wanted) for one in fits)
    equals = [one for one in fits if min(one.requests, wanted) == best]
    safe = [one for one in equals if one.swa_requests >= min(one.full_requests, wanted)]
    return min(safe or equals, key=lambda one: abs(math.log(one.sizes.ratio / _ideal(need, best))))


def _ideal(need: Demand, requests: int) -> float:
    """Return the ratio of what so many requests need of each pool."""
    share = max(1, requests) / need.requests
    return min(1.0, (need.swa * share + need.swa_fixed) / (need.full * share))
