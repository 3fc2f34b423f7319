"""Reads the logs that a command line names, for every verb that takes some."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING

from gemma4_dumps.wording import number_of
from gemma4_triage.errors import UsageMistake
from gemma4_triage.terminal import say

if TYPE_CHECKING:
    from gemma4_triage.logs.facts import LogFacts

STDIN = "-"


def read_logs(names: Iterable[str], points: int = 2) -> list[LogFacts]:
    """Each log once, in the order given; says on stderr where one ended early or no line was understood.

    points: of each time series at most. Raises UsageMistake.
    """
    listed = list(names)
    if listed.count(STDIN) > 1:
        raise UsageMistake("- is given twice", "stdin can be read once")
    once = {_place(name): name for name in reversed(listed)}
    read = [_read(name, points) for name in reversed(once.values())]
    for facts in read:
        if facts.problem:
            say(f"{facts.name} {facts.problem}")
        if not facts.understood_lines:
            say(f"{facts.name}: 0 of {number_of(facts.lines, 'line')} understood")
    return read


def _place(name: str) -> str:
    """The same for two names of one file."""
    try:
        return name if name == STDIN else os.path.realpath(name)
    except (OSError, ValueError):
        # The current folder is gone, or no path looks like that: reading it will say so.
        return name


def _read(name: str, points: int) -> LogFacts:
    from gemma4_triage.logs.read import read_source
    from gemma4_triage.logs.source import Source

    return read_source(Source(name), points - points % 2)
