"""Which cores servers and the measuring process run on, and what idle servers take of them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path

_WORTH_SPLITTING = 4
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def split_cores() -> tuple[set[int], set[int]]:
    """(the measuring process's, the servers') cores; both are all of them where there are fewer than four.

    Every arm gets the same cores: with cores of its own, an arm would be measured with their neighbours' load and
    clocks. Only one arm works at a time, and the others sleep (SGLang's --sleep-on-idle).
    """
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < _WORTH_SPLITTING:
        return set(cores), set(cores)
    return {cores[0]}, set(cores[1:])


def session_members(session: int) -> list[int]:
    """Processes of a session, without zombies. Field 6 of /proc/PID/stat; the name before it may hold anything."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, _, _, member_of = path.read_text().rpartition(")")[2].split()[:4]
            if int(member_of) == session and state != "Z":
                found.append(int(path.parent.name))
    return found


def cpu_seconds(processes: Iterable[int]) -> float:
    """User and system time that these processes have used so far; those that have ended count nothing."""
    ticks = 0
    for process in processes:
        with contextlib.suppress(OSError):
            fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
    return ticks / _TICKS_PER_S
