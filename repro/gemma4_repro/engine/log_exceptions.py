"""Finds in a log what an engine's processes died of.

A log is full of tracebacks that somebody caught and wrote down, such as an optional import that failed. Those that end
a process are introduced by SGLang's workers ("Scheduler hit an exception:"), by multiprocessing ("Process x:") or by
the runtime layer, which stops a server with a line of its own ("gemma4-triage: SettingsError: ...").
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from gemma4_repro.engine.outcome import Raised

DEATH_MARK = "hit an exception: "
_TRACEBACK = "Traceback (most recent call last):"
_INTRODUCTION = re.compile(r"Process \S+:|Exception in thread .*:")
_CHAIN = ("During handling of the above exception", "The above exception was the direct cause")
_LAST_LINE = re.compile(r"(?:\w+\.)*([A-Za-z_]\w*)(?:: (.*))?")
_STOPPED = re.compile(r"gemma4-triage: ([A-Z]\w*[a-z]\w*): (.*)")
_MAX_LINE = 4000


def exceptions_in(lines: Iterable[str]) -> tuple[Raised, ...]:
    """Return them in order of appearance; of a chain, each link, the cause first."""
    found: list[Raised] = []
    inside = chained = False
    previous = ""
    for line in lines:
        text = line.rstrip("\n")[:_MAX_LINE]
        if text.endswith(_TRACEBACK):
            introduced = text.removesuffix(_TRACEBACK).endswith(DEATH_MARK) or _INTRODUCTION.fullmatch(previous)
            inside, chained = bool(introduced) or chained, False
        elif inside and text and not text[0].isspace():
            inside = False
            if match := _LAST_LINE.fullmatch(text):
                found.append(Raised(match[1], match[2] or ""))
                chained = True
        elif text and not text.startswith(_CHAIN):
            chained = False
            if match := _STOPPED.fullmatch(text):
                found.append(Raised(match[1], match[2]))
        previous = text or previous
    return tuple(found)


def exceptions_in_file(path: Path) -> tuple[Raised, ...]:
    """Return the same for a log file; nothing if there is none."""
    try:
        with path.open(encoding="utf-8", errors="replace") as log:
            return exceptions_in(log)
    except FileNotFoundError:
        return ()


def last_lines(path: Path, count: int = 40) -> list[str]:
    """Return the end of a log, without progress redraws; empty if there is none."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return []
    return [line.rsplit("\r", 1)[-1] for line in text.splitlines()[-count:]]
