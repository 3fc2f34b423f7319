"""A plan: the pools at every ratio, and the ratio that fits most of the load."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from gemma4_runtime.pools.arithmetic import SGLANG_DEFAULT, PoolSizes, TokenBytes, pool_sizes
from gemma4_runtime.pools.demand import Demand, Fit, Workload, demand, fit
from gemma4_runtime.pools.recommend import fits_at_each_ratio, recommend
from gemma4_runtime.pools.serving import Serving
from gemma4_triage.errors import UsageMistake
from gemma4_triage.pools.as_written import gib_text
from gemma4_triage.pools.model_shape import ModelShape

CURVE_STEPS = 100


@dataclass(frozen=True)
class Plan:
    """Sizes of the pools, and what of a workload fits in them.

    Without a workload need, recommended, asked, default, split and curve are None or empty.

    Attributes:
        available_bytes: for both pools, on one GPU.
        asked: at the ratio that was asked about.
        sizes: at `asked_ratio`.
        split: what would be recommended with `split_leaf`, None if that holds no more.
    """

    shape: ModelShape
    cell: TokenBytes
    available_bytes: int
    serving: Serving
    workloads: tuple[Workload, ...]
    asked_ratio: float | None
    sizes: PoolSizes
    need: Demand | None = None
    recommended: Fit | None = None
    asked: Fit | None = None
    default: Fit | None = None
    split: Fit | None = None
    curve: tuple[Fit, ...] = ()

    @property
    def enough(self) -> bool:
        """Whether the whole load fits at once: at the ratio that was asked about, else at the recommended one."""
        judged = self.asked or self.recommended
        return self.need is None or judged is None or judged.requests >= self.need.requests


def make_plan(
    shape: ModelShape,
    cell: TokenBytes,
    available_bytes: int,
    serving: Serving,
    workloads: Sequence[Workload],
    ratio: float | None,
) -> Plan:
    """ratio: the one in use, if one is to be judged.

    Raises:
        UsageMistake: a request is longer than the model's context, or not even one fits at any ratio.
    """
    asked_ratio = SGLANG_DEFAULT if ratio is None else ratio
    sizes = pool_sizes(available_bytes, cell, asked_ratio, serving.page_size)
    plan = Plan(shape, cell, available_bytes, serving, tuple(workloads), ratio, sizes)
    if not workloads:
        return plan
    for load in workloads:
        if load.length > shape.context:
            what = f"a request of {load} has {load.length} tokens, and the model's context is {shape.context}"
            raise UsageMistake(what, "give shorter requests")
    need = demand(workloads, serving)

    def at(ratio: float) -> Fit:
        return fit(pool_sizes(available_bytes, cell, ratio, serving.page_size), need)

    recommended = recommend(fits_at_each_ratio(available_bytes, cell, serving.page_size, need), need)
    if recommended.requests < 1:
        raise UsageMistake(
            _nothing_fits(available_bytes, cell, need), "give more memory, shorter requests, or a smaller --chunk"
        )
    return Plan(
        *(shape, cell, available_bytes, serving, tuple(workloads), ratio, sizes),
        need=need,
        recommended=recommended,
        asked=None if ratio is None else at(ratio),
        default=at(SGLANG_DEFAULT),
        split=_with_split_leaf(available_bytes, cell, serving, workloads, recommended),
        curve=tuple(at(step / CURVE_STEPS) for step in range(1, CURVE_STEPS + 1)),
    )


def _with_split_leaf(
    available_bytes: int, cell: TokenBytes, serving: Serving, workloads: Sequence[Workload], without: Fit
) -> Fit | None:
    if serving.split_leaf or not serving.prefix_cache:
        return None
    need = demand(workloads, replace(serving, split_leaf=True))
    found = recommend(fits_at_each_ratio(available_bytes, cell, serving.page_size, need), need)
    return found if min(found.requests, need.requests) > min(without.requests, need.requests) else None


def _nothing_fits(available_bytes: int, cell: TokenBytes, need: Demand) -> str:
    one_full, one_swa = need.full / need.requests, need.swa / need.requests
    bytes_needed = int(cell.full * one_full + cell.swa * max(need.swa_least, one_swa + need.swa_fixed))
    return (
        f"not one request fits: it needs about {gib_text(bytes_needed)}, and the pools have {gib_text(available_bytes)}"
    )
