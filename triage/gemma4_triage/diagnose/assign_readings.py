"""Which incident a file that is neither dump nor log is of, such as a crash snapshot, stacks or a bundle.

| the file                                                       | relation | stands                                |
|----------------------------------------------------------------|----------|---------------------------------------|
| names a process of the incident on the same host, at a time    | `names`  | with that incident, as evidence       |
| that fits to minutes; is named by its log; or lies in a bundle |          |                                       |
| of that server                                                 |          |                                       |
| has the very launch command, or arguments that agree, and a    | `agrees` | with that incident, as evidence       |
| time within NEAR_S                                             |          |                                       |
| contradicts no fact of it, and says too little                 | `guess`  | alone; it is evidence of nothing else |
| contradicts every incident                                     | `apart`  | alone, and says what parts them       |

Process ids come again after hours, and every container has a process 1: without a time, a pid has to have company.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from gemma4_triage.diagnose.compare_log import (
    ARGUMENTS,
    NEAR_S,
    argument,
    commands_of,
    log_times_s,
    models_of,
    plain_setting,
    releases_of,
)
from gemma4_triage.diagnose.incident import Incident, LogLink
from gemma4_triage.readers.reading import Reading

_FEWEST_ARGUMENTS = 3


@dataclass(frozen=True)
class _Held:
    """What a reading and an incident have in common, and what parts them."""

    process: str
    agreements: tuple[str, ...]
    contradictions: tuple[str, ...]
    near: bool | None


def assign_readings(incidents: Iterable[Incident], readings: Iterable[Reading]) -> list[Incident]:
    """Return the incidents with the readings that are evidence of them, then each other reading as a run of its own.

    A reading may say whose another one is: a bundle has processes, and with them comes what those processes left.
    """
    given = list(incidents)
    alone: list[Incident] = []
    for reading in sorted(readings, key=lambda one: (not one.identity.folder, -len(one.identity.pids))):
        link, at = _link(reading, given)
        if at is None and (own := _among(reading, alone)) is not None:
            alone[own] = _with(alone[own], reading, LogLink(reading.name, "names", alone[own].name, ("one process",)))
        elif at is None:
            alone.append(Incident(readings=(reading,), reading_links=(link,)))
        else:
            given[at] = _with(given[at], reading, link)
    return [*given, *alone]


def _with(incident: Incident, reading: Reading, link: LogLink) -> Incident:
    return replace(incident, readings=(*incident.readings, reading), reading_links=(*incident.reading_links, link))


def _among(reading: Reading, alone: Sequence[Incident]) -> int | None:
    """Return which run of only readings it belongs to; what says nothing of whose it is belongs to none."""
    identity = reading.identity
    bundled = any(other.identity.folder for run in alone for other in run.readings)
    if not (identity.pids or identity.command or identity.settings or identity.folder or bundled):
        return None
    near = (at for at, run in enumerate(alone) if _near(reading, run) is not False or bundled)
    return next((at for at in near if _is_proof(_hold(reading, alone[at]))), None)


def _link(reading: Reading, incidents: Sequence[Incident]) -> tuple[LogLink, int | None]:
    held = [(_hold(reading, incident), at) for at, incident in enumerate(incidents)]
    proven = [(one, at) for one, at in held if _is_proof(one)]
    if proven:
        one, at = max(proven, key=lambda pair: (bool(pair[0].process), len(pair[0].agreements)))
        relation = "names" if one.process else "agrees"
        reasons = tuple(filter(None, (one.process, *one.agreements)))
        return LogLink(reading.name, relation, incidents[at].name, reasons), at
    open_ones = [(one, at) for one, at in held if not one.contradictions]
    if not held:
        return LogLink(reading.name, "alone", "", ()), None
    if not open_ones:
        one, at = min(held, key=lambda pair: len(pair[0].contradictions))
        return LogLink(reading.name, "apart", incidents[at].name, one.contradictions), None
    one, at = max(open_ones, key=lambda pair: (pair[0].near is True, len(pair[0].agreements)))
    if one.near is not True and not one.agreements:
        return LogLink(reading.name, "alone", "", ()), None
    reasons = (*(("both are near in time",) if one.near else ()), *one.agreements)
    return LogLink(reading.name, "guess", incidents[at].name, reasons), None


def _is_proof(held: _Held) -> bool:
    if held.contradictions:
        return False
    if held.process:
        return bool(held.near) or (held.near is None and bool(held.agreements))
    return bool(held.near) and len(held.agreements) >= _FEWEST_ARGUMENTS


def _hold(reading: Reading, incident: Incident) -> _Held:
    near = _near(reading, incident)
    agreements: list[str] = []
    contradictions: list[str] = ["they are more than minutes apart"] if near is False else []
    for what, theirs, ours in _facts(reading, incident):
        if theirs and ours:
            known = theirs in ours
            text = f"both have {what} {theirs}" if known else f"{what} {theirs} is not {' or '.join(ours)}"
            (agreements if known else contradictions).append(text)
    if bundle := _bundle_of(reading, incident):
        return _Held(f"collect took both from one server, in {bundle}", tuple(agreements), (), True)
    shared = sorted(set(reading.identity.pids) & set(processes_of(incident)))
    process = f"process {', '.join(map(str, shared[:3]))} is in both" if shared else ""
    if any(os.path.basename(reading.name) in facts.named_files for facts in incident.logs):
        process = "its log names it"
    return _Held(process, tuple(agreements), tuple(contradictions), near)


def _bundle_of(reading: Reading, incident: Incident) -> str:
    """Return the bundle that holds both the reading and a log or reading of the incident; "" if there is none."""
    for other in incident.readings:
        if is_inside(reading.name, other.identity.folder):
            return other.identity.folder
    inside = any(is_inside(facts.name, reading.identity.folder) for facts in incident.logs)
    return reading.identity.folder if inside else ""


def is_inside(name: str, folder: str) -> bool:
    """Return whether a file lies in a bundle's folder."""
    return bool(folder) and name.startswith(f"{folder}/")


def _facts(reading: Reading, incident: Incident) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """Yield what is compared: the reading's value, "" where it says nothing, and those of the incident."""
    identity = reading.identity
    yield "host", identity.host, _once(hosts_of(incident))
    yield "SGLang", identity.release, releases_of(incident)
    commands = commands_of(incident)
    model = identity.settings.get("model_path") or argument(identity.command, "model_path") or ""
    yield "model", model, models_of(incident)
    pages = [str(dump.manifest.page_size) for dump in incident.dumps if dump.manifest.page_size]
    pages += [facts.settings["page_size"] for facts in incident.logs if "page_size" in facts.settings]
    yield "page size", identity.settings.get("page_size", ""), _once(pages)
    for name in ARGUMENTS:
        theirs = plain_setting(identity.settings.get(name) or argument(identity.command, name))
        ours = [value for command in commands if (value := argument(command, name)) is not None]
        ours += [value for facts in incident.logs if (value := plain_setting(facts.settings.get(name))) is not None]
        for other in incident.readings:
            value = plain_setting(other.identity.settings.get(name) or argument(other.identity.command, name))
            ours += [] if value is None else [value]
        yield f"--{name.replace('_', '-')}", theirs or "", _once(ours)


def processes_of(incident: Incident) -> tuple[int, ...]:
    """Return the ids of every process that an incident's evidence names, in no order."""
    pids = [dump.manifest.host.pid for dump in incident.dumps]
    pids += [guards.pid for guards in incident.guards if guards.pid is not None]
    return (*pids, *(pid for reading in incident.readings for pid in reading.identity.pids))


def hosts_of(incident: Incident) -> tuple[str, ...]:
    """Return the machines that an incident's evidence names."""
    hosts = [dump.manifest.host.hostname for dump in incident.dumps]
    hosts += [str(guards.fields["hostname"]) for guards in incident.guards if guards.fields.get("hostname")]
    return _once([*hosts, *(one.identity.host for one in incident.readings if one.identity.host)])


def _near(reading: Reading, incident: Incident) -> bool | None:
    """Return whether both overlap in time or nearly; None where one of them has no time.

    An incident has times of its start and its end; what was seen between them is near.
    """
    theirs = reading.times_s
    ours = [*incident.times_s, *(time for facts in incident.logs for time in log_times_s(facts))]
    ours += [time for other in incident.readings for time in other.times_s]
    if not theirs or not ours:
        return None
    return min(theirs) <= max(ours) + NEAR_S and max(theirs) >= min(ours) - NEAR_S


def _once(values: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(value for value in values if value))
