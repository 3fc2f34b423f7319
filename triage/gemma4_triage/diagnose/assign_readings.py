"""Which incident a file that is neither dump nor log is of, such as a crash snapshot, stacks or a bundle.

| the file                                                       | relation | stands                                |
|----------------------------------------------------------------|----------|---------------------------------------|
| names a process of the incident on the same host, at a time    | `names`  | with that incident, as evidence       |
| that fits to minutes; names, without a time, several of its    |          |                                       |
| processes and those of no other, or one and an argument of it; |          |                                       |
| is named by its log; or lies in a bundle of that server        |          |                                       |
| has the very launch command, or arguments that agree, and a    | `agrees` | with that incident, as evidence       |
| time within NEAR_S                                             |          |                                       |
| contradicts no fact of it, and says too little                 | `guess`  | alone; it is evidence of nothing else |
| contradicts every incident                                     | `apart`  | alone, and says what parts them       |

Process ids come again after hours, and every container has a process 1: without a time, a pid has to have company.
Stacks of py-spy have no time, and those of one process alone are a guess.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import PurePath

from gemma4_triage.diagnose.compare_log import (
    ARGUMENTS,
    FEWEST_AGREEMENTS,
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

_FEWEST_PROCESSES = 2
_MOST_NAMED = 8
"""How many values of an incident a sentence names; thousands of readings may each bring one."""


@dataclass(frozen=True)
class _Held:
    """What a reading and an incident have in common, and what parts them.

    Attributes:
        process: why they have a process in common, in a clause; "" if nothing says so.
        agreements: a clause each.
        contradictions: a clause each.
        near: whether they are near in time; None where one of them has no time.
        shared: how many processes both name.
    """

    process: str
    agreements: tuple[str, ...]
    contradictions: tuple[str, ...]
    near: bool | None
    shared: int = 0


class _Said:
    """What a reading says of its server, worked out once: it is held against every incident."""

    def __init__(self, reading: Reading) -> None:
        identity = reading.identity
        self.reading = reading
        self.pids = frozenset(identity.pids)
        self.times_s = (min(times), max(times)) if (times := reading.times_s) else ()
        self.folders = [str(folder) for folder in PurePath(reading.name).parents]
        model = identity.settings.get("model_path") or argument(identity.command, "model_path") or ""
        self.settings = {
            name: value
            for name in ARGUMENTS
            if (value := plain_setting(identity.settings.get(name) or argument(identity.command, name))) is not None
        }
        facts = {"host": identity.host, "SGLang": identity.release, "model": model}
        facts["page size"] = identity.settings.get("page_size", "")
        facts |= {f"--{name.replace('_', '-')}": value for name, value in self.settings.items()}
        self.facts = {what: value for what, value in facts.items() if value}


class _Known:
    """What the evidence of an incident says of its server, kept up with the readings that are added to it."""

    def __init__(self, incident: Incident) -> None:
        self._incident = incident
        self._added: list[tuple[Reading, LogLink]] = []
        self.name = incident.name
        self.logs = incident.logs
        self.pids: dict[int, None] = dict.fromkeys(processes_of(incident))
        self.folders: set[str] = set()
        times = [*incident.times_s, *(time for facts in incident.logs for time in log_times_s(facts))]
        self.times_s = (min(times), max(times)) if times else ()
        pages = [str(dump.manifest.page_size) for dump in incident.dumps if dump.manifest.page_size]
        pages += [facts.settings["page_size"] for facts in incident.logs if "page_size" in facts.settings]
        found = {"host": hosts_of(incident), "SGLang": releases_of(incident), "model": models_of(incident)}
        found["page size"] = tuple(pages)
        commands = commands_of(incident)
        for name in ARGUMENTS:
            ours = [value for command in commands if (value := argument(command, name)) is not None]
            ours += [value for facts in incident.logs if (value := plain_setting(facts.settings.get(name))) is not None]
            found[f"--{name.replace('_', '-')}"] = tuple(ours)
        self.values = {what: dict.fromkeys(filter(None, values)) for what, values in found.items()}

    def add(self, said: _Said, link: LogLink) -> None:
        """Take a reading as evidence of the incident."""
        self._added.append((said.reading, link))
        self.name = self.name or said.reading.name
        self.pids |= dict.fromkeys(said.pids)
        self.times_s = (times := (*self.times_s, *said.times_s)) and (min(times), max(times))
        self.folders |= {said.reading.identity.folder} - {""}
        for what in ("host", *(f"--{name.replace('_', '-')}" for name in said.settings)):
            if what in said.facts:
                self.values[what][said.facts[what]] = None

    def result(self) -> Incident:
        """Return the incident with everything that was added."""
        readings = (*self._incident.readings, *(reading for reading, _ in self._added))
        links = (*self._incident.reading_links, *(link for _, link in self._added))
        return replace(self._incident, readings=readings, reading_links=links)


def assign_readings(incidents: Iterable[Incident], readings: Iterable[Reading]) -> list[Incident]:
    """Return the incidents with the readings that are evidence of them, then each other reading as a run of its own.

    A reading may say whose another one is: a bundle has processes, and with them comes what those processes left.
    """
    given = [_Known(incident) for incident in incidents]
    alone: list[_Known] = []
    ordered = sorted(readings, key=lambda one: (not one.identity.folder, -len(one.identity.pids)))
    for said in map(_Said, ordered):
        link, at = _link(said, given)
        if at is None and (own := _among(said, alone)) is not None:
            own.add(said, LogLink(said.reading.name, "names", own.name, ("one process",)))
        elif at is None:
            alone.append(_Known(Incident()))
            alone[-1].add(said, link)
        else:
            given[at].add(said, link)
    return [known.result() for known in (*given, *alone)]


def _among(said: _Said, alone: Sequence[_Known]) -> _Known | None:
    """Return which run of only readings it belongs to; what says nothing of whose it is belongs to none."""
    identity = said.reading.identity
    bundled = any(run.folders for run in alone)
    if not (identity.pids or identity.command or identity.settings or identity.folder or bundled):
        return None
    near = (run for run in alone if _near(said, run) is not False or bundled)
    return next((run for run in near if _is_proof(_hold(said, run))), None)


def _link(said: _Said, incidents: Sequence[_Known]) -> tuple[LogLink, int | None]:
    name = said.reading.name
    held = [(_hold(said, incident), at) for at, incident in enumerate(incidents)]
    proven = [(one, at) for one, at in held if _is_proof(one)]
    if proven and not _is_of_several([one for one, _ in proven]):
        one, at = max(proven, key=lambda pair: (bool(pair[0].process), len(pair[0].agreements)))
        relation = "names" if one.process else "agrees"
        reasons = tuple(filter(None, (one.process, *one.agreements)))
        return LogLink(name, relation, incidents[at].name, reasons), at
    open_ones = [(one, at) for one, at in held if not one.contradictions]
    if not held:
        return LogLink(name, "alone", "", ()), None
    if not open_ones:
        one, at = min(held, key=lambda pair: len(pair[0].contradictions))
        return LogLink(name, "apart", incidents[at].name, one.contradictions), None
    one, at = max(open_ones, key=lambda pair: (pair[0].near is True, pair[0].shared, len(pair[0].agreements)))
    if one.near is not True and not one.agreements and not one.shared:
        return LogLink(name, "alone", "", ()), None
    reasons = (*(("both are near in time",) if one.near else ()), *filter(None, (one.process,)), *one.agreements)
    return LogLink(name, "guess", incidents[at].name, reasons), None


def _is_of_several(proven: Sequence[_Held]) -> bool:
    """Return whether only process ids join it, and those are of several incidents: containers number theirs alike."""
    return len(proven) > 1 and all(one.near is None and one.shared and not one.agreements for one in proven)


def _is_proof(held: _Held) -> bool:
    if held.contradictions:
        return False
    if held.process:
        return bool(held.near) or (held.near is None and (bool(held.agreements) or held.shared >= _FEWEST_PROCESSES))
    return bool(held.near) and len(held.agreements) >= FEWEST_AGREEMENTS


def _hold(said: _Said, known: _Known) -> _Held:
    near = _near(said, known)
    agreements: list[str] = []
    contradictions: list[str] = ["they are more than minutes apart"] if near is False else []
    for what, theirs in said.facts.items():
        if ours := known.values.get(what):
            if theirs in ours:
                agreements.append(f"both have {what} {theirs}")
            else:
                contradictions.append(f"{what} {theirs} is not {' or '.join(islice(ours, _MOST_NAMED))}")
    if bundle := _bundle_of(said, known):
        return _Held(f"collect took both from one server, in {bundle}", tuple(agreements), (), True)
    shared = sorted(said.pids & known.pids.keys())
    process = f"process {', '.join(map(str, shared[:3]))} is in both" if shared else ""
    if any(os.path.basename(said.reading.name) in facts.named_files for facts in known.logs):
        process = "its log names it"
    return _Held(process, tuple(agreements), tuple(contradictions), near, len(shared))


def _bundle_of(said: _Said, known: _Known) -> str:
    """Return the bundle that holds both the reading and a log or reading of the incident; "" if there is none."""
    if known.folders and (held := next((folder for folder in said.folders if folder in known.folders), "")):
        return held
    folder = said.reading.identity.folder
    return folder if any(is_inside(facts.name, folder) for facts in known.logs) else ""


def is_inside(name: str, folder: str) -> bool:
    """Return whether a file lies in a bundle's folder."""
    return bool(folder) and name.startswith(f"{folder}/")


def processes_of(incident: Incident) -> tuple[int, ...]:
    """Return the ids of every process that an incident's evidence names, in no order."""
    pids = [dump.manifest.host.pid for dump in incident.dumps]
    pids += [guards.pid for guards in incident.guards if guards.pid is not None]
    # What a collector of logs says is the host's number of a process, which a container has under another.
    pids += [pid for facts in incident.logs for what in ("scheduler", "other") for pid in facts.pids.get(what, ())]
    return (*pids, *(pid for reading in incident.readings for pid in reading.identity.pids))


def hosts_of(incident: Incident) -> tuple[str, ...]:
    """Return the machines that an incident's evidence names."""
    hosts = [dump.manifest.host.hostname for dump in incident.dumps]
    hosts += [str(guards.fields["hostname"]) for guards in incident.guards if guards.fields.get("hostname")]
    return _once([*hosts, *(one.identity.host for one in incident.readings if one.identity.host)])


def _near(said: _Said, known: _Known) -> bool | None:
    """Return whether both overlap in time or nearly; None where one of them has no time.

    An incident has times of its start and its end; what was seen between them is near.
    """
    if not said.times_s or not known.times_s:
        return None
    return said.times_s[0] <= known.times_s[1] + NEAR_S and said.times_s[1] >= known.times_s[0] - NEAR_S


def _once(values: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(value for value in values if value))
