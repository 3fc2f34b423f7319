"""What to do about one dump, as lines: the diagnosis of that dump alone, in short."""

from __future__ import annotations

from gemma4_dumps.reader import Dump
from gemma4_triage.diagnose.commands import patches_with, path_of
from gemma4_triage.diagnose.conclude import conclude
from gemma4_triage.diagnose.grouping import group
from gemma4_triage.diagnose.plan import completed
from gemma4_triage.finding import Finding

PROGRAM = "gemma4-triage"


def first_finding(dump: Dump) -> Finding:
    """Return the likeliest cause of a single dump. There is always one: the last fallback takes every dump."""
    (incident,) = group((dump,))
    return completed(conclude(incident)[:1], incident)[0]


def next_steps(dump: Dump, on_screen: str = "dumps show") -> list[str]:
    """Return the lines to show under "what to do next", most useful first; `on_screen` is the verb that shows them."""
    found, path = first_finding(dump), path_of(dump)
    return [
        f"{found.cause} ({found.label})",
        *found.advice,
        *([fix_line(found)] if found.fix else []),
        *(f"Run: {command}" for command in found.next_commands if not command.startswith(f"{PROGRAM} {on_screen} ")),
        f"The evidence, field by field: {PROGRAM} diagnose {path}",
        f"Make sure that this dump is whole: {PROGRAM} dumps verify {path}",
    ]


def fix_line(found: Finding) -> str:
    """Say which patch of ours repairs it, and how to attach it."""
    return f"The fix is `{found.fix}`: serve with GEMMA4_TRIAGE_PATCHES={patches_with(found.fix or '')}"
