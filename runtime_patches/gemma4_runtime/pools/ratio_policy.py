"""The ratio between the two pools that a server's own arguments ask for. Pure: a start in, a choice and its reason out.

What is known at a start is how long a request may get, how many may run, and the memory. The choice is the ratio that
holds most requests of that length (`recommend`), under two conditions:

| condition                                                          | because                                      |
|--------------------------------------------------------------------|----------------------------------------------|
| the SWA pool holds a chunk, a window and a page                    | the longest prompt has to be admitted        |
| without a stated length: it holds all requests that may run, each  | the model's own context is what nobody sends:|
|   with as much sliding KV as a request can ever keep               | shorter ones need relatively more SWA        |

Where all requests that may run fit, none is retracted for sliding KV, whatever their lengths up to the context: the
demand is of the worst split into prompt and output, and a shorter request holds no more. Where memory ends before,
SGLang goes on admitting by what is in use at that moment, as at any ratio; of ratios that hold as many, the one at
which the full pool ends first is taken, because of that one SGLang's admission counts what is still to come.

SGLang's ratio stays if the user gave one, if nothing was said about the load, or if the choice would hold no more.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from gemma4_runtime.pools.arithmetic import PoolSizes, TokenBytes, pool_sizes
from gemma4_runtime.pools.demand import Demand, Fit, Workload, demand, fit
from gemma4_runtime.pools.recommend import fits_at_each_ratio, recommend
from gemma4_runtime.pools.serving import Serving

SGLANG_MOST_REQUESTS = 2048
"""What ModelRunner._resolve_max_num_reqs allows a server at least, if --max-running-requests is not given."""


@dataclass(frozen=True)
class Start:
    """What a server knows of itself when it sizes its pools.

    Attributes:
        available_bytes: for both pools on one GPU.
        context: tokens of the longest request that is accepted.
        context_given: by --context-length, and not the model's own.
        requests: that may run at once, None if nothing says.
        most_tokens: --max-total-tokens.
        ratio: in the arguments.
        ratio_given: by the user, None if nobody can tell.
    """

    available_bytes: int
    cell: TokenBytes
    serving: Serving
    context: int
    context_given: bool
    requests: int | None
    most_tokens: int | None
    ratio: float
    ratio_given: bool | None


@dataclass(frozen=True)
class Choice:
    """The ratio to use, SGLang's or another, and why, in words. sizes: of the pools at that ratio."""

    ratio: float
    why: str
    sizes: PoolSizes


def choose(start: Start) -> Choice:
    """See above."""
    kept = _kept_unasked(start)
    if kept is not None:
        return _keep(start, kept)
    choice = _work_out(start)
    return replace(choice, why="; ".join((choice.why, *start.serving.remarks)))


def _work_out(start: Start) -> Choice:
    requests = start.requests or SGLANG_MOST_REQUESTS
    need = demand([Workload(requests, *start.serving.worst_split(start.context))], start.serving)
    least = least_swa_tokens(start, need)
    fits = [one for one in _at_each_ratio(start, need) if one.sizes.swa_tokens >= least]
    if not fits:
        return _keep(start, f"at no ratio does the SWA pool hold the {least} tokens that {_whose(start, requests)}")
    now, best = fit(_sizes(start, start.ratio), need), recommend(fits, need)
    held, before = (min(one.requests, requests) for one in (best, now))
    if start.context_given and not held:
        return _keep(start, f"not one request of {start.context} tokens fits at any ratio")
    if (held, best.sizes.full_tokens) <= (before, now.sizes.full_tokens):
        return _keep(start, f"no ratio holds more: {_held(start, before, requests)}")
    why = f"{best.sizes.ratio:g} instead of {start.ratio:g}: {_held(start, held, requests)}, {before} before"
    if not start.context_given:
        why += f"; the SWA pool is sized for {requests} of any length"
    return Choice(
        best.sizes.ratio,
        f"{why}; full pool {best.sizes.full_tokens} tokens, SWA pool {best.sizes.swa_tokens}",
        best.sizes,
    )


def least_swa_tokens(start: Start, need: Demand) -> int:
    """Return the smallest SWA pool that the policy makes, in tokens. need: of the requests that may run."""
    serving = start.serving
    floor = serving.whole_pages(min(serving.chunk, start.context) + serving.window + serving.page_size)
    return floor if start.context_given else max(floor, need.swa + need.swa_fixed)


def _kept_unasked(start: Start) -> str | None:
    """Say why there is nothing to work out; None if there is."""
    if start.ratio_given:
        return "given by the user"
    if start.ratio_given is None:
        return "the arguments were made before this plugin was loaded, so nobody can tell whether it was given"
    if start.requests is None and not start.context_given:
        return "neither --context-length nor --max-running-requests says what the load is"
    return None


def _at_each_ratio(start: Start, need: Demand) -> list[Fit]:
    return fits_at_each_ratio(start.available_bytes, start.cell, start.serving.page_size, need, start.most_tokens)


def _sizes(start: Start, ratio: float) -> PoolSizes:
    return pool_sizes(start.available_bytes, start.cell, ratio, start.serving.page_size, start.most_tokens)


def _keep(start: Start, reason: str) -> Choice:
    return Choice(start.ratio, f"{start.ratio:g} kept: {reason}", _sizes(start, start.ratio))


def _held(start: Start, held: int, requests: int) -> str:
    return f"{held} of {requests} requests of {start.context} tokens fit at once"


def _whose(start: Start, requests: int) -> str:
    return "a prompt of this length needs" if start.context_given else f"{requests} requests of any length may keep"
