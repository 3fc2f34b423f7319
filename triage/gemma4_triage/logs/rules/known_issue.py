"""What a process died of is a public issue: its signature holds in one traceback, and the release may have it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from gemma4_triage.finding import Confidence, Finding
from gemma4_triage.known_issues.catalog import known_issues
from gemma4_triage.known_issues.match import Occurrence, holds
from gemma4_triage.known_issues.record import KnownIssue
from gemma4_triage.logs.facts import Death, LogFacts
from gemma4_triage.logs.rule import at, exception_text

ID = "known-issue"
TITLE = "a public issue of SGLang, by its signature"


# Where no thread names a way round, what takes the part of the engine that broke out of play.
_ASIDE = {
    "gemma": "take a later release of SGLang, with the transformers that it asks for.",
    "gpt-oss": "take a later release of SGLang.",
    "sliding-window": "take a later release; until then keep the SWA pool from filling: fewer requests, a "
    "larger ratio, "
    "no drafts.",
    "speculative": "serve without --speculative-algorithm, or take a later release.",
    "hicache": "serve without --enable-hierarchical-cache, or take a later release.",
    "pd": "take a later release on both servers, with the same parallelism.",
    "dp-attention": "serve without --enable-dp-attention, or take a later release.",
    "lora": "merge the adapter into the model's weights, or train it on language layers only, or take a later release.",
    "quantised": "serve a checkpoint that is not quantised, or the publisher's own, or take a later release.",
    "vision": "take a later release; until then refuse such images before they reach the server.",
    "structured-output": "take a later release, or another --grammar-backend; refuse such schemas before they "
    "reach it.",
    "requests": "take a later release; until then keep such requests from the server.",
    "memory": "fewer requests at once (--max-running-requests), or a later release.",
    "start-up": "take a later release, with the packages that its pyproject names.",
}


@dataclass(frozen=True)
class Match:
    """A record, the first end that its signature holds in, and whether the release has it (None: not known)."""

    issue: KnownIssue
    death: Death
    concerned: bool | None


def matches_in(facts: LogFacts, issues: Iterable[KnownIssue]) -> list[Match]:
    """Return the issues whose signature holds in one end, in the order of the ends; each once.

    All that matching is told of a log goes through here.
    """
    found: dict[str, Match] = {}
    listed = tuple(issues)
    for death in facts.deaths:
        occurrence = Occurrence(death.type_name, death.message, death.frames, facts.settings)
        for issue in listed:
            if issue.id not in found and holds(issue.signature, occurrence):
                found[issue.id] = Match(issue, death, issue.concerns(facts.release or None))
    return list(found.values())


def beside(found: Sequence[Finding], facts: LogFacts) -> list[Finding]:
    """Return the issues that no other finding names as its own: a rule that knows one says more of it."""
    named = {thread for finding in found for thread in finding.upstream}
    return [finding for finding in find(facts) if named.isdisjoint(finding.upstream)]


def find(facts: LogFacts) -> Iterator[Finding]:
    """Yield one finding per issue, of the first end that it fits, unless the release is known not to have it."""
    for match in _concerning(facts):
        yield _finding(facts, match)


def explained(facts: LogFacts) -> list[tuple[str, str]]:
    """Return type and innermost frame of the ends that are of a known issue."""
    return [(match.death.type_name, match.death.frame) for match in _concerning(facts)]


def _concerning(facts: LogFacts) -> list[Match]:
    # Most logs tell of no end, and need no record to be read.
    found = matches_in(facts, known_issues()) if facts.deaths else []
    return [match for match in found if match.concerned is not False]


def _finding(facts: LogFacts, match: Match) -> Finding:
    issue, death = match.issue, match.death
    without = issue.fixed or issue.gone_by
    newer = (f"SGLang {without} has the fix",) if without else ()
    advice = (*newer, issue.workaround or _ASIDE[issue.topic])
    where = f"raised in {death.frame}" if death.frame else "what the process died of"
    return Finding(
        rule=ID,
        cause=f"{issue.state(facts.release or None)}: {issue.title}. {issue.cause}",
        confidence=Confidence(issue.confidence),
        evidence=(at(facts, death.place, exception_text(death), where),),
        ruled_out_if=(f"the server ran SGLang {without} or later",) if without else (),
        advice=advice,
        next_commands=(f"gemma4-triage known show {issue.id}",),
        fix=issue.patch,
        upstream=tuple(f"SGLang {thread}" for thread in issue.threads),
    )
