"""Which dumps are one incident: those of one launch of a server, on one host.

| kept together                                          | because                                                |
|--------------------------------------------------------|--------------------------------------------------------|
| dumps of one process: host, pid, start of its guards   | target and draft share a scheduler process             |
| ... however far apart in time                          | a repeated violation is written ever more rarely, and  |
|                                                        | consequences (leaks) show long after their cause       |
| processes with equal host, command and settings, other | ranks of one launch                                    |
| ranks, that started within START_WINDOW_S              |                                                        |
| guard manifests without dumps, by the same test        | the launcher and the detokenizer have no violation     |

A process of a rank that the launch has already is a restart, and so another incident. Where two launches fit, the one
that started nearer is taken. Ranks on several hosts are several incidents.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gemma4_dumps.reader import Dump
from gemma4_triage.diagnose.guards import Guards
from gemma4_triage.diagnose.incident import GUARDS, LEDGERS, Incident, Ledger

START_WINDOW_S = 120.0


@dataclass
class _Process:
    """A process that left something.

    Attributes:
        rank: None for a process that wrote no dump.
        started_s: since the epoch, of its guard manifest, else its first dump.
        family: what processes of one launch have in common.
    """

    host: str
    pid: int
    rank: int | None
    started_s: float
    family: str
    dumps: list[Dump] = field(default_factory=list)
    guards: Guards | None = None


def group(
    dumps: Iterable[Dump],
    guards: Iterable[Guards] = (),
    ledgers: Iterable[Ledger] = (),
    unread: Iterable[Path] = (),
) -> list[Incident]:
    """Return incidents, the newest first.

    Args:
        dumps: of any number of launches.
        guards: manifests that lie in files of their own.
        ledgers: likewise.
        unread: what lay beside them and could not be read.
    """
    launches: list[list[_Process]] = []
    processes = _processes(sorted(dumps, key=lambda dump: (dump.manifest.created_utc, dump.manifest.dump_id)), guards)
    # Those with a rank first: a process without one joins whatever launch is nearest.
    for process in sorted(processes, key=lambda process: (process.rank is None, process.started_s)):
        launch = _launch_of(process, launches)
        if launch is None:
            launches.append([process])
        else:
            launch.append(process)
    named, folders = list(ledgers), {_folder_of(path) for path in unread}
    incidents = [_incident(launch, named, folders) for launch in launches]
    return sorted(incidents, key=_newest, reverse=True)


def _processes(dumps: Sequence[Dump], guards: Iterable[Guards]) -> list[_Process]:
    found: dict[tuple[str, int, str], _Process] = {}
    for dump in dumps:
        manifest = dump.manifest
        record = Guards(manifest.dump_id, "guards.", manifest.guards)
        key = (manifest.host.hostname, manifest.host.pid, str(manifest.guards.get("created_utc")))
        started = record.started_utc or manifest.created_utc
        family = _family(manifest.launch_args, record)
        process = found.setdefault(key, _Process(key[0], key[1], manifest.host.rank, started.timestamp(), family))
        process.dumps.append(dump)
        # The latest holds what start-up checks added meanwhile.
        process.guards = record if manifest.guards else process.guards
    for record in guards:
        started = record.started_utc
        if record.pid is None or started is None:
            continue
        host, command = str(record.fields.get("hostname")), record.fields.get("command")
        key = (host, record.pid, str(record.fields.get("created_utc")))
        family = _family(command if isinstance(command, list) else (), record)
        process = found.setdefault(key, _Process(host, record.pid, None, started.timestamp(), family))
        process.guards = process.guards or record
    return list(found.values())


def _family(command: Sequence[Any], guards: Guards) -> str:
    return json.dumps([[str(word) for word in command], guards.fields.get("settings")], sort_keys=True, default=str)


def _launch_of(process: _Process, launches: list[list[_Process]]) -> list[_Process] | None:
    fitting = [launch for launch in launches if _fits(process, launch)]
    return min(fitting, key=lambda launch: abs(launch[0].started_s - process.started_s), default=None)


def _fits(process: _Process, launch: list[_Process]) -> bool:
    first = launch[0]
    return (
        (first.host, first.family) == (process.host, process.family)
        and abs(first.started_s - process.started_s) <= START_WINDOW_S
        and (process.rank is None or all(other.rank != process.rank for other in launch))
    )


def _folder_of(path: Path) -> Path:
    """Return the folder of dumps in which something lies, itself or in its folder of guard manifests or ledgers."""
    return path.parent.parent if path.parent.name in (GUARDS, LEDGERS) else path.parent


def _incident(launch: list[_Process], ledgers: list[Ledger], unread: set[Path]) -> Incident:
    dumps = [dump for process in launch for dump in process.dumps]
    names = {f"{process.host}_p{process.pid}.json" for process in launch}
    return Incident(
        dumps=tuple(sorted(dumps, key=lambda dump: (dump.manifest.created_utc, dump.manifest.dump_id))),
        guards=tuple(process.guards for process in launch if process.guards is not None),
        ledgers=tuple(ledger for ledger in ledgers if ledger.source in names),
        # Of manifests without a dump it is not known where they lay.
        beside_unread=bool(unread & {dump.path.parent for dump in dumps} if dumps else unread),
    )


def _newest(incident: Incident) -> float:
    return max(incident.times_s, default=0.0)
