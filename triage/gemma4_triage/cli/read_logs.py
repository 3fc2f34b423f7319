"""Reads the logs that a command line names, for every verb that takes some."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from gemma4_dumps.unpacked import origin
from gemma4_dumps.wording import number_of
from gemma4_triage.errors import UsageMistake
from gemma4_triage.terminal import say
from gemma4_triage.time_limit import until

if TYPE_CHECKING:
    from gemma4_triage.diagnose.sources import Evidence
    from gemma4_triage.logs.facts import LogFacts

STDIN = "-"


def read_evidence(evidence: Evidence, points: int | None = None, but: Iterable[str] = ()) -> list[LogFacts]:
    """Read the logs among what was named; those that lie in folders only as long as all of that may take.

    Args:
        evidence: what was found.
        points: of each time series at most; None for as many as `logs` keeps.
        but: names of logs that were read before.

    Those that were left for the time are added to `evidence.not_read`. Raises UsageMistake.
    """
    quiet, before = len(evidence.logs) > 1, list(but)
    named = [name for name in evidence.logs if name not in evidence.found_logs]
    already = [*before, *named]
    read = read_logs(named, points, quiet, before, "diagnose")
    late = 0
    for name in (one for one in evidence.logs if one in evidence.found_logs):
        if time.monotonic() > evidence.end_s:
            late += 1
            continue
        with until(evidence.end_s):
            read += read_logs([name], points, quiet, already, "diagnose")
    evidence.not_read += late
    if late:
        say(f"not read: {number_of(late, 'log')}: reading took too long; name a part of it, or --limit 0 for all")
    return read


def read_logs(
    names: Iterable[str],
    points: int | None = None,
    quiet: bool = False,
    but: Iterable[str] = (),
    verb: str = "logs",
) -> list[LogFacts]:
    """Read each log once, in the order given; say on stderr where one ended early or no line was understood.

    Args:
        names: paths; "-" is stdin.
        points: of each time series at most; None for as many as `logs` keeps.
        quiet: leave out what is said of a log in which no line was understood, as many files of a folder are.
        but: names of logs that were read before.
        verb: the command that reads them, for hints.

    Raises UsageMistake.
    """
    listed = list(names)
    before = {_place(name) for name in but}
    if listed.count(STDIN) > 1 or (STDIN in listed and STDIN in before):
        raise UsageMistake("- is given twice", "stdin can be read once")
    once = {place: name for name in reversed(listed) if (place := _place(name)) not in before}
    read = [_read(name, points, verb) for name in reversed(once.values())]
    for facts in read:
        if facts.problem:
            say(f"{facts.name} {facts.problem}")
        if not facts.understood_lines and not quiet:
            say(f"{facts.name}: 0 of {number_of(facts.lines, 'line')} understood")
    return read


def _place(name: str) -> str:
    """Return the same place for two names of one file."""
    try:
        return name if name == STDIN else os.path.realpath(name)
    except (OSError, ValueError):
        # The current folder is gone, or no path looks like that: reading it will say so.
        return name


def _read(name: str, points: int | None, verb: str) -> LogFacts:
    from gemma4_triage.logs.read import DEFAULT_POINTS, read_source
    from gemma4_triage.logs.source import Source

    # Rules look at the series too: with few points a log would be judged otherwise than `logs` judges it.
    points = DEFAULT_POINTS if points is None else points
    facts = read_source(Source(name, verb), points - points % 2)
    # What lies in a zip is named by the zip, not by where it was unpacked.
    return replace(facts, name=origin(Path(name)))
