"""Requests wait though they need not: no batch runs, or few run while the pool has room for more."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from gemma4_triage.finding import Confidence, Finding
from gemma4_triage.logs import said_in_notes
from gemma4_triage.logs.facts import LogFacts, Place, RankFacts, Remark
from gemma4_triage.logs.late_pattern import pattern
from gemma4_triage.logs.remarks import STANDING, number_in
from gemma4_triage.logs.rule import COLLECT, Rule, at, of_settings, on_rank, over, remarked
from gemma4_triage.logs.switched_on import MEET, features

LONG_S = 60.0
"""Without a batch, while requests wait. The longest steps and compilations that a sound server has end before."""


def _find(facts: LogFacts) -> Iterator[Finding]:
    # That clients wait in vain is what such a queue looks like from outside.
    if facts.deaths or any(alarm.kind != "timeout" for alarm in facts.alarms) or said_in_notes.goes_on(facts):
        return
    for name, last in facts.remarks.items():
        if not name.startswith(STANDING) or not name.endswith(" 3"):
            continue
        first = facts.remarks[f"{name[:-1]}1"]
        if (seconds := _between(_stamp(first), _stamp(last))) is not None and seconds >= _STANDS_S:
            yield _of_vllm(facts, first, last, seconds)
            return
    for rank in facts.schedulers:
        if (lines := _without_any(rank)) is not None:
            yield _tell(facts, rank, *lines)
            return
        last = _last_batch(rank)
        if last is None or not last["queued_max"]:
            continue
        seconds = _between(last["time"], facts.end_time)
        if seconds is not None and seconds >= LONG_S:
            yield _tell(facts, rank, last, seconds)
            return


def _last_batch(rank: RankFacts) -> dict | None:
    """Return the last batch line; None if there is none, or if the series tells it from others no more."""
    if not rank.series["line"]:
        return None
    last = {name: column[-1] for name, column in rank.series.items()}
    return last if last["batch_lines"] == 1 else None


def _between(begin: str, end: str) -> float | None:
    try:
        return (datetime.fromisoformat(end) - datetime.fromisoformat(begin)).total_seconds()
    except (TypeError, ValueError):
        return None


_STANDS_S, _STANDS_LINES = 20.0, 3


def _without_any(rank: RankFacts) -> tuple[dict, float] | None:
    """Return the last batch line, and for how long all up to it have had none running and some waiting."""
    points = [dict(zip(rank.series, values, strict=True)) for values in zip(*rank.series.values(), strict=True)]
    still: list[dict] = []
    for point in reversed(points):
        if point["running_max"] or point["new_tokens"] or point["generated_per_s"] or not point["queued_max"]:
            break
        still.append(point)
    if rank.moving_lines or sum(point["batch_lines"] for point in still) < _STANDS_LINES:
        return None
    seconds = _between(still[-1]["time"], still[0]["time"])
    return (still[0], seconds) if seconds is not None and seconds >= _STANDS_S else None


_STAMP = pattern(r"\b(?:(\d{4})-)?(\d\d)-(\d\d)[ T](\d\d:\d\d:\d\d)")
_A_YEAR = "2024"  # vLLM's stamps have none; that of a leap year has all days


def _stamp(line: Remark) -> str:
    """Return the stamp of a line of vLLM's."""
    found = _STAMP.search(line.text)
    return f"{found[1] or _A_YEAR}-{found[2]}-{found[3]}T{found[4]}" if found else line.place.time


_HELD = 5  # percent of the KV cache


def _of_vllm(facts: LogFacts, first: Remark, last: Remark, seconds: float) -> Finding:
    usage = number_in(last.text.replace("usage: ", "usage "), "KV cache usage")
    held = usage is not None and usage >= _HELD
    return Finding(
        rule=RULE.id,
        cause=f"Requests wait and none runs, for {seconds:.0f} s: the scheduler takes none of them in"
        + (
            f", while {usage:.0f}% of the KV cache is held, though nothing runs: by requests that are parked (their KV "
            "is on its way from a connector or an offload) and hold what the first in the queue needs."
            if held
            else ". The first in the queue can never be admitted, or waits for something outside: its KV from "
            "another server, a grammar, an adapter."
        ),
        confidence=Confidence.LIKELY if seconds >= LONG_S else Confidence.POSSIBLE,
        evidence=(
            at(facts, first.place, first.text, "the first line that shows none running"),
            at(facts, last.place, last.text, "the last one"),
            *of_settings(facts, "kv_transfer_config", "max_num_seqs", "max_model_len"),
        ),
        ruled_out_if=("a later line has requests running: then the first only had to wait",),
        advice=(
            *_of_a_large_one(facts, usage),
            "restart it without the KV connector or offloading (--kv-transfer-config, --kv-offloading-size): if it "
            "then runs, KV on its way deadlocks with admission; a later release of vLLM, or more room and fewer "
            "requests at once (--max-num-seqs)",
            "if it stands without one too: the first request alone, which may need more KV than there is "
            "(--max-model-len, its max_tokens), then once without structured output and adapters",
            "/health answers 200 all the same: py-spy dump of the engine's process says whether it waits or turns",
        ),
    )


def _of_a_large_one(facts: LogFacts, usage: float | None) -> tuple[str, ...]:
    """Return what to do about a first request that is never let in, where the cache is empty and no connector is on."""
    asked = facts.arguments
    if usage is None or usage >= 1 or any(name in asked for name in ("kv_transfer_config", "kv_offloading_size")):
        return ()
    pool = facts.remarks.get("vllm_pool")
    tokens = number_in(pool.text.replace(",", "").replace("size: ", "size "), "KV cache size") if pool else None
    longest = asked.get("max_model_len", "")
    said = f" ({tokens:.0f} tokens, and --max-model-len is {longest})" if tokens and longest.isdecimal() else ""
    return (
        f"nothing is held, so the first needs more than it may have by the admission's count of the whole pool{said}, "
        "and those behind it wait with it: a later release of vLLM (some count sliding windows as the whole prompt: "
        "vLLM 39866); until then a larger pool (--gpu-memory-utilization, --kv-cache-dtype fp8, more GPUs), or a "
        "--max-model-len below what is let in, so that it is refused",
    )


def _tell(facts: LogFacts, rank: RankFacts, last: dict, seconds: float) -> Finding:
    waits = last["queued_max"]
    embeds = rank.decode_lines == 0
    return Finding(
        rule=RULE.id,
        cause=f"Requests wait{on_rank(rank.rank)} and no batch has run for {seconds:.0f} s, while the process lives: "
        "the scheduler takes none of them in.",
        confidence=Confidence.POSSIBLE,
        evidence=(
            at(facts, Place(last["line"], last["time"]), waits, "the last batch line, with so many waiting"),
            over(facts, "the last stamp", facts.end_time, "of a line that is no batch's"),
            *of_settings(facts, "max_running_requests", "disable_overlap_schedule", "is_embedding"),
        ),
        ruled_out_if=("the log was cut there, or the requests that waited were aborted",),
        advice=(
            *_of_sessions(facts),
            *said_in_notes.named_in_notes(facts),
            *(f"once {one.without}, in which ranks meet" for one in features(facts) if one.setting in MEET),
            "collect, while it stands, shows whether the scheduler computes, waits or turns in its loop",
            *(
                ("a server that only prefills: --disable-overlap-schedule, or --max-running-requests above the peak",)
                if embeds
                else ("once with --disable-overlap-schedule, once with a higher --max-running-requests",)
            ),
            "restart it: the health check does not see this; /health_generate does",
        ),
        next_commands=(COLLECT,),
    )


def _of_sessions(facts: LogFacts) -> tuple[str, ...]:
    """Return what to do where streaming sessions are on, of a model that keeps states; empty elsewhere."""
    given = {**facts.arguments, **facts.settings}
    if given.get("enable_streaming_session") != "True":
        return ()
    return (
        "once without --enable-streaming-session: a session that is closed has kept its places, of states (mamba "
        "usage) above all, until none is left for whoever waits (SGLang 23496); a restart frees them. Then a later "
        "release",
    )


RULE = Rule("queue-stands", "requests wait and no batch runs", _find, alarms=frozenset({"timeout"}))

_LINES, _SHARE = 10, 0.8  # decode lines, and of those the ones with requests waiting
_ROOM = 0.75  # of a pool in use at most
_STEADY = 0.85  # of the most that ran
_QUEUE, _QUEUE_SHARE = 4, 0.25  # requests that wait at least, and as a share of those that run


def _held_back(facts: LogFacts) -> Iterator[Finding]:
    for rank in facts.schedulers:
        series = rank.series
        names = ("running_max", "queued_max", "full_usage_max", "swa_usage_max", "generated_per_s", "line", "time")
        points = [point for point in zip(*(series[name] for name in names), strict=True) if point[4] is not None]
        waiting = [point for point in points if point[1]]
        if rank.decode_lines < _LINES or len(points) < _LINES or len(waiting) < _SHARE * len(points):
            continue
        most, least = (of(point[0] or 0 for point in waiting) for of in (max, min))
        usage = max(max(point[2] or 0, point[3] or 0) for point in waiting)
        told = all(point[2] is not None for point in waiting)
        if not told or usage > _ROOM or least < _STEADY * most or rank.retractions.events or "states" in facts.remarks:
            continue
        limit = limit_of(facts)
        reached = limit is not None and limit - 1 <= most <= limit
        # A few that have only just come are no queue.
        if reached or min(point[1] for point in waiting) >= max(_QUEUE, _QUEUE_SHARE * most):
            yield _too_few(facts, rank, (int(most), limit, reached), usage, Place(waiting[-1][5], waiting[-1][6]))
            return


_ONE_LESS = (
    "one above the wanted number for each rank (SGLang 30294); a larger --chunked-prefill-size, so that a prompt is "
    "not cut: in some releases its place stays taken behind its last chunk, until another request ends (SGLang 35537)"
)


def _too_few(
    facts: LogFacts, rank: RankFacts, of_limit: tuple[int, int | None, bool], usage: float, place: Place
) -> Finding:
    most, limit, reached = of_limit
    one_less = reached and most == (limit or 0) - 1
    return Finding(
        rule=HELD_BACK.id,
        cause=f"Requests wait{on_rank(rank.rank)} while {most} run and the pool is at most {usage:.0%} full: "
        + (
            f"the limit of requests that run at once ({limit}"
            f"{', of which one that is prefilled in chunks takes one' if one_less else ''}) holds them back, and not "
            "memory."
            if reached
            else "neither memory nor, as far as the log says, the limit of requests holds them back, but what the "
            "scheduler keeps free for tokens to come, or a limit of its own."
        ),
        confidence=Confidence.LIKELY if reached else Confidence.POSSIBLE,
        evidence=(
            at(facts, place, most, "requests running (#running-req), with others waiting"),
            *remarked(facts, "pools", "the limit at the start (max_running_requests)"),
            *of_settings(facts, "max_running_requests", "dp_size", "pp_size", "schedule_conservativeness"),
        ),
        ruled_out_if=("the queue empties between two decode lines: a few requests more than fit are no queue",),
        advice=(
            *(
                (
                    "raise --max-running-requests (each data-parallel rank has its share of it, each stage of a "
                    "pipeline too), and --cuda-graph-max-bs with it",
                )
                if reached
                else ()
            ),
            *((_ONE_LESS,) if one_less else ()),
            *(() if reached else _of_drafts(facts)),
            *(
                ()
                if reached
                else (
                    "a lower --schedule-conservativeness (0.3), or a max_tokens near what answers need: room is kept "
                    "for the tokens that a request may still ask for",
                    "adapters (--max-loras-per-batch), a grammar that compiles, and the cap of states "
                    "(--max-mamba-cache-size) hold requests back, too",
                )
            ),
            "if the GPU is busy all the same, more at once only waits elsewhere: hold tokens/s of both against each "
            "other",
        ),
    )


def _of_drafts(facts: LogFacts) -> tuple[str, ...]:
    """Return what to do where the server drafts: that costs at many requests, and bounds how many run."""
    if facts.settings.get("speculative_algorithm", "None") == "None":
        return ()
    graphs = ", and less without graphs (--disable-cuda-graph)" * (facts.settings.get("disable_cuda_graph") == "True")
    return (
        "once without --speculative-algorithm at this load, or with fewer --speculative-num-steps: drafts pay while "
        f"few requests run{graphs}, and beside them the release bounds by itself how many may run (32 or 48), unless "
        "--max-running-requests names it; hold tokens/s of both against each other",
    )


_NOT_FOR_MEMORY = (
    "line {0} has {1} running and {2} waiting, and the limit is {3}: that does not hold the others back, nor memory "
    "where its pools have room. The scheduler keeps in a flag (batch_is_full) that no more fits, and some releases set "
    "it while a prompt is prefilled in chunks, or a batch was full, and look at it again only when a request ends "
    "(SGLang 35537): a later release; until then a --chunked-prefill-size above the prompts that come together, or a "
    "--max-running-requests above what is wanted"
)


def below_the_limit(facts: LogFacts) -> Iterator[str]:
    """Yield what to do where the last batch line has requests waiting beside fewer running than may."""
    limit = limit_of(facts)
    for rank in facts.schedulers:
        last = {name: column[-1] for name, column in rank.series.items()} if rank.series["line"] else {}
        running, queued = (int(last.get(name) or 0) for name in ("running_max", "queued_max"))
        usage = max(last.get("full_usage_max") or 0, last.get("swa_usage_max") or 0)
        if limit is not None and 0 < running < limit and queued and usage <= _ROOM:
            yield _NOT_FOR_MEMORY.format(last["line"], running, queued, limit)
            return


def limit_of(facts: LogFacts) -> int | None:
    """Return how many requests one scheduler may run at once; None if the log does not say."""
    pools, asked = facts.remarks.get("pools"), facts.settings
    # The line of the pools has each rank's share, the start line what all have together.
    said = number_in(pools.text, "max_running_requests") if pools else None
    limit, ranks = asked.get("max_running_requests", ""), asked.get("dp_size", "1")
    apart = asked.get("enable_dp_attention") == "True" and ranks.isdecimal()
    share = int(limit) // (max(1, int(ranks)) if apart else 1) if limit.isdecimal() else None
    return min((int(one) for one in (said, share) if one is not None), default=None)


HELD_BACK = Rule("requests-held-back", "requests wait while few run and the pool has room", _held_back)
