"""Transfers of KV to a decode server that never end: they keep their places, and fewer and fewer requests run."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from gemma4_triage.finding import Confidence, Finding
from gemma4_triage.logs import said_in_notes, split_sides
from gemma4_triage.logs.facts import LogFacts, RankFacts, Standing
from gemma4_triage.logs.rule import Rule, at, of_settings, on_rank, over

_LINES, _SECONDS = 2, 300.0  # no transfer of a sound network takes so long
_NOTED_SECONDS = 20.0  # where nothing runs, and a note says that requests stand
_MANY = 4  # requests
_EMPTY = 0.5  # of the pool in use at most


def _find(facts: LogFacts) -> Iterator[Finding]:
    for rank in facts.schedulers:
        stands = rank.standing
        if stands is None or stands.lines < _LINES or stands.requests < max(_MANY, 2 * stands.running):
            continue
        usage = _last_usage(rank)
        noted = said_in_notes.NAME in facts.remarks and not stands.running
        least = _NOTED_SECONDS if noted else _SECONDS
        if (seconds := _seconds(stands)) >= least and usage is not None and usage <= _EMPTY:
            yield _tell(facts, rank, stands, seconds, usage)
            return


def _seconds(stands: Standing) -> float:
    try:
        begin, end = (datetime.fromisoformat(place.time) for place in (stands.first, stands.last))
    except (TypeError, ValueError):
        return 0.0
    return (end - begin).total_seconds()


def _long(seconds: float) -> str:
    return f"{seconds / 60:.0f} min" if seconds >= _SECONDS else f"{seconds:.0f} s"


def _last_usage(rank: RankFacts) -> float | None:
    usage = [value for value in rank.series.get("full_usage_max", ()) if value is not None]
    return usage[-1] if usage else None


def _tell(facts: LogFacts, rank: RankFacts, stands: Standing, seconds: float, usage: float) -> Finding:
    return Finding(
        rule=RULE.id,
        cause=f"{stands.requests} transfers stand{on_rank(rank.rank)}: #transfer-req has not changed for "
        f"{_long(seconds)}, with {stands.running} running and {usage:.0%} of the KV cache in use. They have "
        "begun and never end (their sign that all has come was lost), and keep the places of requests that would run.",
        confidence=Confidence.LIKELY if seconds >= _SECONDS else Confidence.POSSIBLE,
        evidence=(
            at(facts, stands.first, stands.requests, "#transfer-req, the first of these lines"),
            at(facts, stands.last, stands.requests, "#transfer-req, the last of them"),
            over(facts, "decode lines", rank.moving_most, "the most that waited for their KV (#transfer-req)"),
            *of_settings(facts, "disaggregation_transfer_backend", "disaggregation_ib_device"),
        ),
        ruled_out_if=(
            "these are other requests each time: the number alone stands, as at a steady load of long prompts",
        ),
        advice=(
            *((alike,) if (alike := split_sides.of_as_many_ranks(facts)) else ()),
            *((given,) if (given := split_sides.made_alike(facts)) else ()),
            "restart this decode server, which frees the places; watch #transfer-req (an alarm where it stands while "
            "few run)",
            "a later release on both sides, which gives up a transfer that has begun and does not end (SGLang 31800)",
            "why signs are lost: errors of RDMA or NIXL, prefill ranks that died or were restarted at the time when it "
            "began to grow; once with the other --disaggregation-transfer-backend (mooncake, nixl)",
        ),
        next_commands=("gemma4-triage collect URL",),
        upstream=("SGLang 31800",),
    )


RULE = Rule("transfers-stand", "transfers of KV stand, and keep places of a decode server", _find)
