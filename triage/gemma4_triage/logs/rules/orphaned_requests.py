"""Requests whose clients have gone run on in the scheduler, whose outputs nobody takes."""

from __future__ import annotations

from collections.abc import Iterator

from gemma4_dumps.wording import number_of
from gemma4_triage.finding import Confidence, Finding
from gemma4_triage.logs.facts import LogFacts
from gemma4_triage.logs.kept_by_none import is_split, kept_by_none
from gemma4_triage.logs.late_pattern import pattern
from gemma4_triage.logs.notes_in_prose import kinds_noted
from gemma4_triage.logs.rule import Rule, at, remarked

_ADVICE = (
    "restart, and take another release of SGLang, of those of August 2026 (0.5.18, 0.5.19) a later one (SGLang "
    "35255): an abort has to reach the scheduler when a client goes",
    "until then a max_tokens for every request, and clients and routers that wait longer",
)


_GO_ON = pattern(
    r"(?i)\bsuch lines\b.{0,60}\b(?:for (?:\d+|many|several) (?:minutes|hours)|(?:a|per) second|never end)|"
    r"\bnew requests? (?:\w+ )?waits?\b|\b(?:slots?|places?) (?:\w+ )?(?:taken|full|occupied)\b|"
    r"\bGPUs? (?:is |are |stays? |keeps? )?(?:still )?busy\b"
)


def _is_noted_to_go_on(facts: LogFacts) -> bool:
    """Say whether somebody noted that such outputs go on, that their requests hold room, or that others wait."""
    notes = facts.remarks.get("notes")
    return "silence" in kinds_noted(facts) or (notes is not None and _GO_ON.search(notes.text) is not None)


def _find(facts: LogFacts) -> Iterator[Finding]:
    alarm = next((alarm for alarm in facts.alarms if alarm.kind == "health"), None)
    if alarm is not None and not facts.deaths and "orphan" in facts.remarks:
        yield Finding(
            rule=RULE.id,
            cause="A request whose client had gone ran on in the scheduler, and its outputs kept the tokenizer "
            "manager from answering health checks.",
            confidence=Confidence.LIKELY,
            evidence=(
                *remarked(facts, "orphan", "an output of a request that nobody waits for, the last such line"),
                at(facts, alarm.place, alarm.text, f"the health check; {number_of(alarm.count, 'such line')}"),
            ),
            ruled_out_if=("such lines end by themselves long before the first health check fails",),
            advice=(*_ADVICE, "until then a probe that allows more failures"),
        )
    elif alarm is not None and not facts.deaths and is_split(facts) and (kept := kept_by_none(facts)):
        why, look, evidence = kept
        gone = "abort" in facts.remarks
        yield Finding(
            rule=RULE.id,
            cause=f"The server did not answer its health check, and {why}"
            f"{'. Clients had gone before: what they asked for was not given up on both sides' * gone}.",
            confidence=Confidence.LIKELY if gone else Confidence.POSSIBLE,
            evidence=(
                evidence,
                *remarked(facts, "abort", "a client that went"),
                at(facts, alarm.place, alarm.text, "the health check"),
            ),
            ruled_out_if=("the pool empties by itself while nothing new comes in",),
            advice=(
                *look,
                "of a split pair on both servers, restarted both; compare #unbootstrapped-req (prefill) and "
                "pre-allocated usage (decode), which grow while few run: the gateway should take in no more than "
                "both serve (--max-running-requests, a queue at the router) and wait longer for the first token "
                "(SGLang 8177)",
            ),
        )
    elif "zombie" in facts.remarks or ("orphan" in facts.remarks and _is_noted_to_go_on(facts)):
        sign = "zombie" if "zombie" in facts.remarks else "orphan"
        yield Finding(
            rule=RULE.id,
            cause="Requests whose clients had gone run on in the scheduler: their abort was lost, they take room and "
            "time until they end by themselves, and fill the log.",
            confidence=Confidence.LIKELY,
            evidence=tuple(remarked(facts, sign, "one request's output that nobody waits for, once more")),
            ruled_out_if=("the lines of each such request end within a few steps",),
            advice=_ADVICE,
            upstream=("SGLang 36876",),
        )


RULE = Rule("orphaned-requests", "requests run on whose clients have gone", _find, alarms=frozenset({"health"}))
