"""What happened in an incident, in the order of time, of all its evidence."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

from gemma4_triage.diagnose.compare_log import seconds_of, zone_of
from gemma4_triage.diagnose.incident import Incident
from gemma4_triage.logs.facts import LogFacts

MAX_ENTRIES = 40
_MOST_OF_ONE = 8


@dataclass(frozen=True)
class Entry:
    """Something that happened.

    Attributes:
        time_s: since the epoch.
        source: the dump, log or file that says so.
        text: what happened, in a clause.
    """

    time_s: float
    source: str
    text: str

    @property
    def time_utc(self) -> str:
        """Return the time as it is shown, to the second."""
        return datetime.fromtimestamp(self.time_s, UTC).strftime("%Y-%m-%d %H:%M:%S")


def timeline(incident: Incident) -> tuple[Entry, ...]:
    """Return what happened, the earliest first; of each source the first few, of all the first MAX_ENTRIES.

    A log's clock is shifted by whole zones where it is proven to be of this server and only then fits.
    """
    found = [*_starts(incident), *_dumps(incident), *_readings(incident)]
    for facts in incident.logs:
        found += _log(facts, incident)
    return tuple(sorted(found, key=lambda entry: entry.time_s)[:MAX_ENTRIES])


def joint_timeline(incident: Incident) -> tuple[Entry, ...]:
    """Return the timeline as it is shown: where more than one kind of evidence has a time; else nothing."""
    entries = timeline(incident) if incident.readings or (incident.logs and incident.dumps) else ()
    return entries if len({entry.source for entry in entries}) > 1 else ()


def _starts(incident: Incident) -> Iterator[Entry]:
    for guards in incident.guards:
        if guards.started_utc is not None:
            yield Entry(guards.started_utc.timestamp(), guards.source, f"process {guards.pid} started, guarded")


def _dumps(incident: Incident) -> Iterator[Entry]:
    for dump in incident.dumps[:_MOST_OF_ONE]:
        manifest = dump.manifest
        step = "" if manifest.step is None else f" at step {manifest.step}"
        yield Entry(manifest.created_utc.timestamp(), manifest.dump_id, f"{manifest.rule}: {manifest.verdict}{step}")


def _readings(incident: Incident) -> Iterator[Entry]:
    for reading in incident.readings:
        for moment in [one for one in reading.moments if one.time_s is not None][:_MOST_OF_ONE]:
            yield Entry(moment.time_s or 0.0, reading.name, moment.text)


def _log(facts: LogFacts, incident: Incident) -> Iterator[Entry]:
    zone = zone_of(facts, incident)
    times = [("the log begins", facts.first_time), ("the log ends", facts.last_time)]
    times += [(f"died of {death.type_name or death.message}"[:120], death.place.time) for death in facts.deaths[:4]]
    times += [(f"{alarm.text}"[:120], alarm.place.time) for alarm in facts.alarms[:4]]
    for text, time in times:
        at = seconds_of(time)
        if at is not None:
            yield Entry(at - zone, facts.name, text)
