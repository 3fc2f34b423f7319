"""Which incident a log is of.

| the log                                            | relation  | stands                                              |
|----------------------------------------------------|-----------|-----------------------------------------------------|
| names a dump or a guard manifest of an incident    | `names`   | with that incident, as evidence                     |
| and contradicts no fact of it; or `collect` took   |           |                                                     |
| it from the same server                            |           |                                                     |
| names a process of an incident on that host, at    | `names`   | with that incident, as evidence                     |
| the same time, and contradicts no fact of it       |           |                                                     |
| begins and ends with an incident, agrees with it   | `agrees`  | with that incident, as evidence                     |
| in FEWEST_AGREEMENTS facts, and contradicts none   |           |                                                     |
| contradicts no fact of an incident, so that it is  | `guess`   | alone. That they belong together is said to be a    |
| near it in time or has no times                    |           | guess; it is evidence of nothing in the incident    |
| contradicts every incident                         | `apart`   | alone, and says what the contradiction is           |
| is beside no incident at all                       | `alone`   | alone                                               |

Among several incidents that fit alike the nearest in time is taken, then the newest. compare_log.py has the facts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from gemma4_triage.diagnose.compare_log import FEWEST_AGREEMENTS, NEAR_S, Comparison, compare, compare_facts
from gemma4_triage.diagnose.incident import Incident, LogLink
from gemma4_triage.logs.facts import LogFacts
from gemma4_triage.logs.rules.probe_stopped import dump_names
from gemma4_triage.readers.reading import Identity

_FAR_S = float("inf")


def assign_logs(
    incidents: list[Incident], logs: Iterable[LogFacts], bundles: Sequence[Identity] = ()
) -> list[Incident]:
    """Return the incidents with the logs that are evidence of them, then each other log as a run of its own.

    Args:
        incidents: of dumps and guard manifests.
        logs: to place.
        bundles: what `collect` took from one server each: a log in there is that server's.
    """
    given = list(incidents)
    alone: list[Incident] = []
    for facts in logs:
        link, at = _bundled(facts, incidents, bundles) or _link(facts, incidents)
        if link.is_evidence:
            given[at] = replace(given[at], logs=(*given[at].logs, facts), log_links=(*given[at].log_links, link))
        else:
            alone.append(Incident(logs=(facts,), log_links=(link,)))
    return [*given, *alone]


def _bundled(facts: LogFacts, incidents: Sequence[Incident], bundles: Sequence[Identity]) -> tuple[LogLink, int] | None:
    """Return how a log in a bundle stands to an incident of the bundle's processes; None if there is no such pair."""
    for bundle in bundles:
        if not facts.name.startswith(f"{bundle.folder}/"):
            continue
        for at, incident in enumerate(incidents):
            if set(bundle.pids) & {guards.pid for guards in incident.guards}:
                reason = f"collect took it from the same server, in {bundle.folder}"
                return LogLink(facts.name, "names", incident.name, (reason,)), at
    return None


def _link(facts: LogFacts, incidents: list[Incident]) -> tuple[LogLink, int]:
    """Say how the log stands, and to which incident, by its place among them."""
    for name in (*dump_names(facts), *facts.named_files):
        at = next((at for at, incident in enumerate(incidents) if _has(incident, name)), None)
        if at is not None:
            # Whoever pastes the name of a dump into another server's log makes it no evidence.
            _, contradictions = compare_facts(facts, incidents[at])
            if contradictions:
                reasons = (f"the log names {name}", *contradictions)
                return LogLink(facts.name, "apart", incidents[at].name, reasons), at
            return LogLink(facts.name, "names", incidents[at].name, (f"the log names {name}",)), at
    compared = [(compare(facts, incident), at) for at, incident in enumerate(incidents)]
    if not compared:
        return LogLink(facts.name, "alone", "", ()), 0
    found, at = min(compared, key=_unlikeness)
    if found.contradictions:
        return LogLink(facts.name, "apart", incidents[at].name, found.contradictions), at
    if found.same_process:
        return LogLink(facts.name, "names", incidents[at].name, found.agreements), at
    if found.together and found.telling >= FEWEST_AGREEMENTS:
        reasons = (*found.agreements, "the log begins and ends with it")
        return LogLink(facts.name, "agrees", incidents[at].name, reasons), at
    return LogLink(facts.name, "guess", incidents[at].name, (_why_guess(found), *found.agreements)), at


def _has(incident: Incident, name: str) -> bool:
    """Return whether a dump or a guard manifest of the incident has this name."""
    return incident.dump(name) is not None or any(guards.source == name for guards in incident.guards)


def _unlikeness(compared: tuple[Comparison, int]) -> tuple[int, bool, bool, float]:
    found, _ = compared
    distance = _FAR_S if found.away_s is None else found.away_s
    return len(found.contradictions), not found.same_process, not found.together, distance


def _why_guess(found: Comparison) -> str:
    if found.away_s is None:
        return "nothing says when one of them ran"
    return "both are near in time" if found.away_s <= NEAR_S else "both are near in time in some time zone"
