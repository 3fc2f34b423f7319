"""A request waits that no batch can take in, or one long prefill runs, and the health check starves behind it.

SGLang's health check is a request of its own; it fails where no batch gives an answer in time, dead or not.
"""

from __future__ import annotations

from collections.abc import Iterator

from gemma4_triage.finding import Confidence, Evidence, Finding
from gemma4_triage.logs.facts import Alarm, LogFacts, Place, RankFacts
from gemma4_triage.logs.narrow_window_pool import Narrow, narrow
from gemma4_triage.logs.remarks import number_in
from gemma4_triage.logs.rule import COLLECT, Rule, at, of_settings, on_rank, over, remarked
from gemma4_triage.logs.rules.queue_stands import limit_of
from gemma4_triage.logs.rules.unexplained_line import STAGES, silence

_STILL = 60  # seconds
_LONG_PREFILL = 8192  # tokens in one batch line
_AGAIN = "SGLANG_HEALTH_CHECK_TIMEOUT above the longest step; /health instead of /health_generate for liveness"


def _find(facts: LogFacts) -> Iterator[Finding]:
    alarm = next((alarm for alarm in facts.alarms if alarm.kind == "health"), None)
    if alarm is None or facts.deaths:
        return
    if "orphan" in facts.remarks:
        return
    for rank in facts.schedulers:
        last = _last_row(rank, alarm)
        if last is None:
            continue
        # What runs gives answers; where none came for so long, the scheduler itself stood still.
        if last["running_max"] and silence(alarm.text) > _STILL:
            continue
        if not last["running_max"] and (small := narrow(facts)) is not None:
            yield _never_fits(facts, rank, last, alarm, small)
            return
        if last["queued_max"] and (last["running_max"] or 0) <= 1:
            yield _waits(facts, rank, last, alarm)
            return
        if (last["new_tokens"] or 0) >= _LONG_PREFILL:
            yield _prefills(facts, rank, last, alarm)
            return


def _last_row(rank: RankFacts, alarm: Alarm) -> dict | None:
    """Return the last point of the series before the alarm, column by column; None if there is none."""
    lines = rank.series.get("line", ())
    before = [index for index, line in enumerate(lines) if line < (alarm.last or alarm.place).line]
    return {name: column[before[-1]] for name, column in rank.series.items()} if before else None


def _waits(facts: LogFacts, rank: RankFacts, last: dict, alarm: Alarm) -> Finding:
    pools = facts.remarks.get("pools")
    tokens = None if pools is None else number_in(pools.text, "max_total_num_tokens")
    context = None if pools is None else number_in(pools.text, "context_len")
    beyond = tokens is not None and context is not None and tokens < context
    alone = facts.settings.get("disaggregation_mode", "None") in ("null", "None")
    alone = alone and facts.settings.get("pp_size", "1") in ("1", "None")
    if tokens is not None and context is not None and not beyond and not last["running_max"] and alone:
        return _taken_for_full(facts, rank, last, alarm)
    said = f": the pool has {tokens:.0f} tokens, and the server takes prompts of {context:.0f}" if beyond else ""
    return Finding(
        rule=RULE.id,
        cause=f"Requests wait while next to nothing runs{on_rank(rank.rank)}, and the health check starves "
        "behind them: "
        f"the first of them may never fit{said}.",
        confidence=Confidence.LIKELY if beyond else Confidence.POSSIBLE,
        evidence=(
            *_evidence(facts, last, alarm),
            over(facts, "last batch line", last["queued_max"], "requests waiting (#queue-req)"),
            *remarked(facts, "pools", "the pool and the longest prompt"),
        ),
        ruled_out_if=("the queue empties by itself once the running request has ended",),
        advice=(
            *((STAGES,) if facts.settings.get("pp_size", "1") not in ("1", "None") else ()),
            "a --context-length that the pool can hold, so that what cannot fit is refused: or a larger pool",
            "find the first request of the queue with --log-requests, and its prompt and max_new_tokens",
            _AGAIN,
        ),
        next_commands=("gemma4-triage pools --config CONFIG --kv-mem 40GiB --workload 64x8000+1000",),
    )


def _taken_for_full(facts: LogFacts, rank: RankFacts, last: dict, alarm: Alarm) -> Finding:
    """Return that nothing runs and what waits would fit, so that the scheduler does not look."""
    embeds = facts.settings.get("is_embedding") == "True"
    overlaps = facts.settings.get("disable_overlap_schedule") != "True"
    limit = limit_of(facts)
    of_embeddings = (
        " A server that only prefills has no decode step behind which it looks again: after a burst that filled "
        "--max-running-requests it has taken that batch for full for ever."
    )
    return Finding(
        rule=RULE.id,
        cause=f"Requests wait{on_rank(rank.rank)} while nothing runs, and the pool has room for any prompt that the "
        "server takes: the scheduler admits none of them, as where it takes a batch for full that has ended. Neither "
        f"memory, the detokenizer nor the health check is at fault.{of_embeddings * embeds}",
        confidence=Confidence.LIKELY if embeds and overlaps else Confidence.POSSIBLE,
        evidence=(
            *_evidence(facts, last, alarm),
            over(facts, "last batch line", last["queued_max"], "requests waiting (#queue-req)"),
            *remarked(facts, "pools", "the pool and the longest prompt"),
            *of_settings(facts, "is_embedding", "max_running_requests", "disable_overlap_schedule"),
        ),
        ruled_out_if=("what waits needs more than room: a grammar, an adapter, KV of another server",),
        advice=(
            *(("--disable-overlap-schedule, until a later release, which looks again",) if overlaps else ()),
            f"--max-running-requests above the largest burst of inputs{f' ({limit} now)' if limit else ''}: of one "
            "request with several inputs each counts",
            "restart it: cancelled requests do not free it, and /health_generate sees it",
        ),
        next_commands=(COLLECT,),
        upstream=("SGLang 22518", "SGLang 23138"),
    )


def _never_fits(facts: LogFacts, rank: RankFacts, last: dict, alarm: Alarm, small: Narrow) -> Finding:
    return Finding(
        rule=RULE.id,
        cause=f"A request may wait that can never come in{on_rank(rank.rank)}, and the health check with all others "
        f"behind it: the pool of the sliding window has {small.tokens} tokens, and a prefill asks for as many as its "
        f"prompt has, up to a chunk of {small.chunk}. Any prompt longer than that pool is such a one.",
        confidence=Confidence.LIKELY,
        evidence=(
            *_evidence(facts, last, alarm),
            *remarked(facts, "pool_sizes", "the pools"),
            over(facts, "server_args", small.chunk, "chunked_prefill_size"),
        ),
        ruled_out_if=(f"no request had a prompt of about {small.tokens} tokens or more",),
        advice=small.advice,
        next_commands=("gemma4-triage pools --config CONFIG --kv-mem 40GiB --workload 64x8000+1000",),
        upstream=("SGLang 31205",),
    )


def _prefills(facts: LogFacts, rank: RankFacts, last: dict, alarm: Alarm) -> Finding:
    return Finding(
        rule=RULE.id,
        cause=f"The health check starved behind a long prefill{on_rank(rank.rank)}: no answer left the server "
        "meanwhile.",
        confidence=Confidence.POSSIBLE,
        evidence=(
            *_evidence(facts, last, alarm),
            over(facts, "last batch lines", last["new_tokens"], "#new-token: prompt tokens before it"),
        ),
        ruled_out_if=("batch lines stop for good there: then a step hangs, and py-spy dump says where",),
        advice=("a smaller --chunked-prefill-size: answers leave between the chunks", _AGAIN),
        upstream=("SGLang 22511",),
    )


def _evidence(facts: LogFacts, last: dict, alarm: Alarm) -> list[Evidence]:
    many = f"; {alarm.count} such lines" if alarm.count > 1 else ""
    return [
        at(facts, alarm.place, alarm.text, f"the health check{many}"),
        at(facts, Place(last["line"], last["time"]), last["running_max"], "requests running before it (#running-req)"),
    ]


RULE = Rule(
    "never-admitted", "the health check starves behind what waits or prefills", _find, alarms=frozenset({"health"})
)
