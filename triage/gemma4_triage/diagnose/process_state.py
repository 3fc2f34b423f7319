"""How the processes of a launch ended, by the marks in their guard manifests, and whether those without one still run.

| marks of a launch                              | what that says                                                      |
|------------------------------------------------|---------------------------------------------------------------------|
| `exception`, `child failed`                    | it failed                                                           |
| else `stopped` or `exit` of any process        | it was stopped: SGLang kills its workers then, which leave none     |
| none, and a process of it still runs           | it serves                                                           |
| none, and a bundle was made while it ran       | it served then; what became of it is not said by what was collected |
| none, and all of them are gone                 | it was killed, and did not say why                                  |
| none, of another machine or container          | nothing                                                             |
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Collection, Iterable, Mapping
from enum import Enum
from pathlib import Path

from gemma4_triage.diagnose.guards import Guards
from gemma4_triage.diagnose.incident import Incident

_PROC = Path("/proc")
_RELEASE = re.compile(r"(\d{1,6})\.(\d{1,6})\.(\d{1,6})")
_LAST_ONE_TOO_WIDE = (0, 5, 22)


class State(Enum):
    """What became of the processes of one launch."""

    UNMARKED = "no probe was there to write how they end"
    FAILED = "failed"
    STOPPED = "stopped"
    RUNNING = "still running"
    SEEN = "running when the bundle was made"
    GONE = "gone without saying why"
    UNKNOWN = "without a mark of their end; whether they still run cannot be told from here"


def state_of_incident(incident: Incident) -> State:
    """Return what became of the processes of an incident; a bundle of it says which of them ran when it was made."""
    return state_of(incident.guards, {pid for reading in incident.readings for pid in reading.identity.running})


def has_unknown_end(incident: Incident) -> bool:
    """Return whether nothing says how an incident's processes ended, or that they run: then nobody knows it was well.

    A log says it, and so does the ledger that a process writes at its end. What else a server leaves says nothing of
    it, but a bundle that was made while it ran.
    """
    state = state_of_incident(incident)
    silent = not (incident.dumps or incident.ledgers or incident.logs)
    silent = silent and (bool(incident.guards) or not any(one.identity.running for one in incident.readings))
    return state is State.UNKNOWN or (state is State.UNMARKED and silent)


def state_of(guards: Iterable[Guards], seen: Collection[int] = ()) -> State:
    """Return what became of the processes of a launch, from their guard manifests and this machine's process table.

    Args:
        guards: Of the launch.
        seen: Processes that something else shows while they ran.
    """
    marking = [one for one in guards if one.marks_its_end]
    hows = {one.ended[0] for one in marking if one.ended is not None}
    if not marking:
        return State.UNMARKED
    if hows & {"exception", "child failed"}:
        return State.FAILED
    if hows:
        return State.STOPPED
    runs = [_runs(one) for one in marking]
    if True in runs:
        return State.RUNNING
    if any(one.pid in seen for one in marking):
        return State.SEEN
    return State.UNKNOWN if None in runs else State.GONE


def _runs(guards: Guards) -> bool | None:
    """Return whether that very process runs on this machine; None if it cannot be told from here."""
    process = guards.fields.get("process")
    if guards.pid is None or not isinstance(process, Mapping):
        return None
    boot, namespace, start = (process.get(name) for name in ("boot_id", "pid_namespace", "start_ticks"))
    if not (isinstance(boot, str) and isinstance(namespace, str) and isinstance(start, int)):
        return None
    if guards.fields.get("hostname") != socket.gethostname() or boot != _text(_PROC / "sys/kernel/random/boot_id"):
        return None
    try:
        if os.readlink(_PROC / "self/ns/pid") != namespace:
            return None
    except OSError:
        return None
    fields = (_text(_PROC / str(guards.pid) / "stat") or "").rpartition(")")[2].split()
    # A process that has ended and that nobody has asked for yet is in state Z.
    return len(fields) > 19 and fields[19] == str(start) and fields[0] not in "ZX"


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None


def ships_right_windows(incident: Incident) -> bool | None:
    """Return whether the release's sliding layers show as many keys as the window holds; None if none is named."""
    of_guards = [one.fields.get("versions") for one in incident.guards]
    named = [dump.manifest.versions.get("sglang") for dump in incident.dumps]
    named += [versions.get("sglang") for versions in of_guards if isinstance(versions, Mapping)]
    found = next((match for text in named if (match := _RELEASE.match(str(text)))), None)
    return None if found is None else tuple(map(int, found.groups())) > _LAST_ONE_TOO_WIDE
