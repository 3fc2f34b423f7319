"""One pool is full while the other has room: the ratio between them does not fit the load."""

from __future__ import annotations

from collections.abc import Iterator

from gemma4_triage.finding import Confidence, Finding
from gemma4_triage.logs.facts import LogFacts, Pool, RankFacts
from gemma4_triage.logs.rank import APART, PRESSED_AT
from gemma4_triage.logs.remarks import number_in
from gemma4_triage.logs.rule import Rule, at, of_settings, on_rank, over, usage_text
from gemma4_triage.logs.rules import swa_not_evicted

_OFTEN = 3  # batch lines; one may be a moment
SHARE = 0.05  # of the batch lines
MOSTLY = 0.75  # of those in which one pool is full
_DIRECTION: dict[Pool, str] = {"swa": "raise", "full": "lower"}
_OTHER: dict[Pool, Pool] = {"swa": "full", "full": "swa"}


def _find(facts: LogFacts) -> Iterator[Finding]:
    bound: list[tuple[RankFacts, Pool]] = [
        (rank, pool)
        for rank in facts.schedulers
        if (pool := binding_pool(rank)) is not None and not (pool == "swa" and swa_not_evicted.of_rank(rank))
    ]
    if not bound:
        return
    rank, pool = max(bound, key=lambda found: found[0].pressed[found[1]])
    if pool == "full" and _with_hardly_any(rank):
        yield _held_by_few(facts, rank)
        return
    peak, retracted = rank.peaks[pool], (rank.retractions.binding or {}).get(pool, 0)
    harm = [
        over(
            facts,
            "batch lines",
            rank.pressed[pool],
            f"of {rank.usage_lines} with {pool} at {PRESSED_AT} or more and the other at least {APART} below it",
        ),
        over(facts, "batch lines", rank.pressed_queued[pool], "of those, with requests waiting (#queue-req)"),
        over(facts, "retractions", retracted, f"with the {pool} pool the fuller one"),
    ]
    if ratio := facts.settings.get("swa_full_tokens_ratio"):
        harm.append(over(facts, "server_args", ratio, "swa_full_tokens_ratio"))
    yield Finding(
        rule=RULE.id,
        cause=f"The {pool} pool binds{on_rank(rank.rank)}, and the {_OTHER[pool]} pool has room that nobody can use: "
        f"{_DIRECTION[pool]} --swa-full-tokens-ratio.",
        confidence=Confidence.CERTAIN if retracted and rank.pressed[pool] >= _OFTEN else Confidence.LIKELY,
        evidence=(at(facts, peak.place, usage_text(peak.full, peak.swa), f"where {pool} was fullest"), *harm),
        advice=_idle_memory(facts),
        next_commands=("gemma4-triage pools --config CONFIG --kv-mem 40GiB --workload 64x8000+1000",),
    )


def _with_hardly_any(rank: RankFacts) -> bool:
    """Say whether one request at most ran wherever the full pool was full, and others waited."""
    columns = (rank.series.get(name, ()) for name in ("running_max", "full_usage_max", "queued_max"))
    full = [(running, queued) for running, usage, queued in zip(*columns, strict=True) if (usage or 0) >= PRESSED_AT]
    return bool(full) and all(running is not None and running <= 1 and queued for running, queued in full)


def _held_by_few(facts: LogFacts, rank: RankFacts) -> Finding:
    peak = rank.peaks["full"]
    return Finding(
        rule=RULE.id,
        cause=f"The full pool is full{on_rank(rank.rank)} while one request at most runs and others wait: either that "
        "one is as long as the pool, or tokens are held that no request has any more (locks on the prefix cache, pages "
        "that were not given back). The log does not say which.",
        confidence=Confidence.POSSIBLE,
        evidence=(
            at(facts, peak.place, usage_text(peak.full, peak.swa), "where full was fullest"),
            over(facts, "batch lines", rank.pressed_queued["full"], "with the pool full and requests waiting"),
            *of_settings(facts, "max_total_tokens", "max_running_requests", "context_length"),
        ),
        advice=(
            "the length of the request that runs there, prompt and answer, against the tokens of the pool: one that is "
            "much shorter does not hold it",
            "a flush_cache, or a restart, frees what was left over; an audit says what that is and whose it was",
        ),
        next_commands=("gemma4-triage serve --debug 1 -- --model-path MODEL", "gemma4-triage audit --live"),
    )


_IDLE_GB, _IDLE_SHARE = 8.0, 0.2  # beside the pools, of what was free before weights; steps and graphs need some


def _idle_memory(facts: LogFacts) -> tuple[str, ...]:
    """Return that memory of the GPU is left beside both pools, if much is: a pool that binds could have it."""
    pools = facts.remarks.get("pools")
    left = number_in(pools.text, "available_gpu_mem") if pools is not None else None
    loaded = facts.remarks.get("after_weights")
    sizes = [number_in(loaded.text, name) for name in ("avail mem", "mem usage")] if loaded is not None else [None]
    had = sum(filter(None, sizes)) if None not in sizes else 0.0
    if left is None or left < max(_IDLE_GB, _IDLE_SHARE * had):
        return ()
    share = facts.settings.get("mem_fraction_static", "None")
    now = f" above the {share} that it is" if share != "None" else ""
    return (
        f"raise --mem-fraction-static{now}, by 0.05 at a time: {left:.0f} GB of the GPU are free beside both pools, of "
        "which a step needs a few; some releases also count layers with a window twice as they size the pools of such "
        "a model, and leave more free than asked for (a later one; SGLang 18039)",
    )


def binding_pool(rank: RankFacts) -> Pool | None:
    """Return the pool that was often full alone, with somebody waiting or retracted for it; None if neither was."""
    pools: tuple[Pool, ...] = ("swa", "full")
    for pool in pools:
        often = rank.pressed[pool] >= max(1, SHARE * rank.usage_lines)
        # Somebody waits now and then on any server that is well used.
        harmed = rank.pressed_queued[pool] >= MOSTLY * rank.pressed[pool] > 0 or (rank.retractions.binding or {}).get(
            pool, 0
        )
        if often and harmed:
            return pool
    return None


RULE = Rule("binding-pool", "one pool is full while the other has room", _find)
