"""Which incident a log is of.

| the log                                                   | is of                                  |
|-----------------------------------------------------------|----------------------------------------|
| names a dump of an incident                               | that incident                          |
| names none, and has no times, or such as fit an incident  | the newest of those                    |
| fits none in time, and the dumps were named by hand       | the newest: they were given together   |
| fits none in time, beside all that a store holds          | none: it is a run of its own           |

A log says no time zone, so times fit if they could in any.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from gemma4_triage.diagnose.incident import Incident
from gemma4_triage.logs.facts import LogFacts
from gemma4_triage.logs.rules.probe_stopped import dump_names

ANY_ZONE_S = 14 * 3600


@dataclass(frozen=True)
class Assigned:
    """incidents: as they were, with their logs; then runs of which there is nothing but a log. guessed: what each log
    was taken for that names no dump, where there was a choice."""

    incidents: list[Incident]
    guessed: tuple[str, ...]


def assign_logs(incidents: list[Incident], logs: Iterable[LogFacts], together: bool) -> Assigned:
    """incidents: the newest first. together: whether dumps and logs were named side by side."""
    given = list(incidents)
    alone: list[Incident] = []
    guessed: list[str] = []
    for facts in logs:
        named = next((at for at, found in enumerate(incidents) if _names(facts, found)), None)
        fitting = next((at for at, found in enumerate(incidents) if _fits(facts, found)), None)
        at = named if named is not None else fitting
        if at is None and together and incidents:
            at = 0
        if named is None and incidents:
            if at is None:
                guessed.append(f"{facts.name} is of another time than what was read: taken as a run of its own")
            elif len(incidents) > 1:
                guessed.append(f"{facts.name} names no dump that was read: taken as the log of incident {at + 1}")
        if at is None:
            alone.append(Incident(logs=(facts,)))
        else:
            given[at] = replace(given[at], logs=(*given[at].logs, facts))
    return Assigned([*given, *alone], tuple(guessed))


def _names(facts: LogFacts, incident: Incident) -> bool:
    return any(incident.dump(name) is not None for name in dump_names(facts))


def _fits(facts: LogFacts, incident: Incident) -> bool:
    first, last = _seconds(facts.first_time), _seconds(facts.last_time)
    times = incident.times_s
    if first is None or last is None or not times:
        return True
    return first - ANY_ZONE_S <= max(times) and min(times) <= last + ANY_ZONE_S


def _seconds(time: str) -> float | None:
    try:
        return datetime.fromisoformat(time).replace(tzinfo=UTC).timestamp()
    except ValueError:
        return None
