"""What a load needs of each pool, and how much of it two pools hold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from gemma4_runtime.pools.arithmetic import PoolSizes
from gemma4_runtime.pools.workload import Workload

Binding = Literal["full", "swa", "both"]


@dataclass(frozen=True)
class Serving:
    """What of the launch arguments decides how long sliding-window KV is kept.

    window: W. chunk: --chunked-prefill-size. chunks_in_flight: 2 with overlap scheduling, else 1. draft_tokens:
    --speculative-num-draft-tokens. evict_multiplier: SGLANG_SWA_EVICTION_INTERVAL_MULTIPLIER, in windows.
    """

    window: int
    page_size: int = 1
    chunk: int = 8192
    chunks_in_flight: int = 2
    draft_tokens: int = 0
    evict_multiplier: float = 1.0

    def swa_tokens(self, length: int) -> int:
        """Of one running request of `length` tokens, whole pages: what is behind the window goes in steps."""
        interval = int(self.window * self.evict_multiplier)
        kept = self.window + max(interval, self.page_size) + self.page_size + self.draft_tokens
        return self.whole_pages(min(length, kept))

    def whole_pages(self, tokens: int) -> int:
        """Rounded up."""
        return -(-tokens // self.page_size) * self.page_size


@dataclass(frozen=True)
class Demand:
    """Of all requests at once, in tokens. swa_fixed: chunks that are being prefilled; for the whole server."""

    requests: int
    full: int
    swa: int
    swa_fixed: int
    swa_least: int

    @property
    def ratio(self) -> float:
        """At which both pools are used up together; the sliding-window pool can be no larger than the full one."""
        return min(1.0, (self.swa + self.swa_fixed) / self.full)


@dataclass(frozen=True)
class Fit:
    """How many requests of the load each pool holds at once, and which one says stop."""

    sizes: PoolSizes
    full_requests: int
    swa_requests: int

    @property
    def requests(self) -> int:
        return min(self.full_requests, self.swa_requests)

    @property
    def binding(self) -> Binding:
        if self.full_requests == self.swa_requests:
            return "both"
        return "full" if self.full_requests < self.swa_requests else "swa"


def demand(workloads: Sequence[Workload], serving: Serving) -> Demand:
    """Of workloads that run at the same time."""
    prompts = sum(load.requests * load.prompt_tokens for load in workloads)
    longest = max(load.prompt_tokens for load in workloads)
    return Demand(
        requests=sum(load.requests for load in workloads),
        full=sum(load.requests * serving.whole_pages(load.length) for load in workloads),
        swa=sum(load.requests * serving.swa_tokens(load.length) for load in workloads),
        swa_fixed=min(serving.chunk * serving.chunks_in_flight, prompts),
        # schedule_policy.py, _swa_budget_for_req: below this the longest prompt is never admitted.
        swa_least=max(min(longest, serving.chunk), serving.window) + serving.page_size,
    )


def fit(sizes: PoolSizes, need: Demand) -> Fit:
    """Of a mix, so many requests in its proportions, rounded down."""
    usable = max(0, sizes.swa_tokens - need.swa_fixed) if sizes.swa_tokens >= need.swa_least else 0
    return Fit(sizes, sizes.full_tokens * need.requests // need.full, usable * need.requests // need.swa)
