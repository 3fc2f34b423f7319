"""A load, what it needs of each pool, and how much of it two pools hold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from gemma4_runtime.pools.arithmetic import PoolSizes
from gemma4_runtime.pools.serving import Serving

Binding = Literal["full", "swa", "both"]


@dataclass(frozen=True)
class Workload:
    """requests run at once, each with prompt_tokens and, at its end, output_tokens."""

    requests: int
    prompt_tokens: int
    output_tokens: int

    @property
    def length(self) -> int:
        """Tokens of one request at its end."""
        return self.prompt_tokens + self.output_tokens

    def __str__(self) -> str:
        return f"{self.requests}x{self.prompt_tokens}+{self.output_tokens}"


@dataclass(frozen=True)
class Demand:
    """What all requests need at once, in tokens; `swa_fixed` is for the whole server, a chunk in prefill."""

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
    """Return what workloads need that run at the same time."""
    longest = max(load.prompt_tokens for load in workloads)
    return Demand(
        requests=sum(load.requests for load in workloads),
        full=sum(load.requests * serving.full_tokens(load.length) for load in workloads),
        swa=sum(load.requests * serving.swa_tokens(load.prompt_tokens, load.output_tokens) for load in workloads),
        swa_fixed=serving.swa_in_prefill(longest),
        # schedule_policy.py, add_one_req: with less than this left the longest prompt is never admitted.
        swa_least=serving.admission_budget(longest) + 1,
    )


def fit(sizes: PoolSizes, need: Demand) -> Fit:
    """Say how many requests of a mix fit, in its proportions, rounded down."""
    usable = max(0, sizes.swa_tokens - need.swa_fixed) if sizes.swa_tokens >= need.swa_least else 0
    return Fit(sizes, sizes.full_tokens * need.requests // need.full, usable * need.requests // need.swa)
