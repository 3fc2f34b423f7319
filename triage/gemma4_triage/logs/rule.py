"""What a rule over a log is, and how it names its evidence."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from gemma4_triage.finding import Evidence, Finding
from gemma4_triage.logs.facts import Death, Drop, LogFacts, Place, RankFacts

_LONGEST_EXCEPTION = 300


@dataclass(frozen=True)
class Rule:
    """find: what the rule makes of a log, usually nothing. explains: whether an end of a process is this rule's."""

    id: str
    title: str
    find: Callable[[LogFacts], Iterator[Finding]]
    explains: Callable[[Death], bool] = lambda death: False


def of_death(
    rule_id: str,
    title: str,
    explains: Callable[[Death], bool],
    tell: Callable[[LogFacts, Death], Finding],
) -> Rule:
    """A rule over what a process died of. tell: makes a finding of the first death that it explains."""

    def find(facts: LogFacts) -> Iterator[Finding]:
        death = next(filter(explains, facts.deaths), None)
        if death is not None:
            yield tell(facts, death)

    return Rule(rule_id, title, find, explains)


def cause_in(death: Death, causes: Mapping[str, str]) -> str:
    """The cause under the first sentence that stands in what the process died of, or nothing."""
    return next((cause for sentence, cause in causes.items() if sentence in death.message), "")


def worst_drop(facts: LogFacts, drop_of: Callable[[RankFacts], Drop | None]) -> tuple[Drop, RankFacts] | None:
    """Return the drop, of all schedulers', that left the smallest share of what was, and the scheduler that had it."""
    drops = [(drop, rank) for rank in facts.schedulers if (drop := drop_of(rank)) is not None]
    return min(drops, key=lambda found: found[0].ratio, default=None)


def at(facts: LogFacts, place: Place, value: str | int | float | None, meaning: str) -> Evidence:
    """A value that stands in a line of the log, and when, as far as the log says."""
    when = f"; {place.time}" if place.time else ""
    return Evidence(source=facts.name, field=f"line {place.line}", value=value, meaning=meaning + when)


def over(facts: LogFacts, what: str, value: str | int | float | None, meaning: str) -> Evidence:
    """A value of the whole log."""
    return Evidence(source=facts.name, field=what, value=value, meaning=meaning)


def exception_text(death: Death) -> str:
    """Its type and message, in at most a few lines' length."""
    return f"{death.type_name}: {death.message}".removeprefix(": ")[:_LONGEST_EXCEPTION]


def of_memory(facts: LogFacts, death: Death) -> list[Evidence]:
    """Return what a process without memory died of, how full the pools were, and the share that they were given."""
    evidence = [at(facts, death.place, death.message[:_LONGEST_EXCEPTION], "what the process died of")]
    if (usage := death.usage) is not None:
        evidence.append(at(facts, usage.place, usage_text(usage.full, usage.swa), "the last pool usage before it"))
    if fraction := facts.settings.get("mem_fraction_static"):
        evidence.append(over(facts, "server_args", fraction, "mem_fraction_static"))
    return evidence


def on_rank(rank: str) -> str:
    """Return " on DP0 TP1", or nothing where there is one scheduler."""
    return f" on {rank}" if rank else ""


def of_drop(facts: LogFacts, drop: Drop, what: str, digits: int) -> list[Evidence]:
    """Return what a moving mean came from, what it went to, and whether it came back.

    Args:
        facts: the log.
        drop: the fall of the mean.
        what: what the mean is of, with its unit.
        digits: to how many decimal digits the mean is rounded.
    """
    found = [
        at(facts, drop.first, round(drop.before, digits), f"{what}, mean until here"),
        at(facts, drop.last, round(drop.after, digits), f"{what}, mean since line {drop.first.line}"),
    ]
    if drop.recovered:
        found.append(at(facts, drop.recovered, None, "back at 90% of what it was"))
    return found


def usage_text(full: float | None, swa: float | None) -> str:
    """Both pools, as the log has them."""
    parts = [f"{name} {share:.2f}" for name, share in (("full", full), ("swa", swa)) if share is not None]
    return ", ".join(parts) or "not said"
