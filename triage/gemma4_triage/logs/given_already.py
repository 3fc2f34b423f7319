"""Advice to give an argument that the start has been given already: it is what fails here, and says so."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache

from gemma4_triage.finding import Finding
from gemma4_triage.logs.facts import LogFacts
from gemma4_triage.logs.late_pattern import pattern

_ADVISED = r"--([a-z][a-z0-9-]*[a-z0-9])(?:[ =]([\w.]+(?:-\w+)*))?"
# The clause up to an argument: it is to be left out there, or spoken of.
_NOT_TO_GIVE = (
    r"\b(?i:without|leave|leaves|left|unset|drop|instead|in place of|has|have|had|because|does not|do not|nor|than|off|"
    r"of|by|both|this server|other|another|higher|lower|larger|smaller|shorter|longer|fewer)\b[^.;:]*$"
)
_SWITCH = ("disable_", "skip_", "enforce_", "trust_")
# Whoever says so speaks of a server that has it: "with --disable-radix-cache earlier ones may keep it".
_SPOKEN_OF = r"(?<![Oo]nce )\bwith $"


@cache
def _words() -> tuple[re.Pattern[str], re.Pattern[str]]:
    """Return both expressions, compiled where a log has a finding."""
    return pattern(_ADVISED), pattern(f"{_NOT_TO_GIVE}|{_SPOKEN_OF}")


def told(facts: LogFacts, found: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return the findings; advice of which all that it gives is given stands last, and each says what is given."""
    return tuple(_told(facts, finding) for finding in found) if facts.arguments else tuple(found)


def _told(facts: LogFacts, finding: Finding) -> Finding:
    given = {advice: _given(facts, advice) for advice in finding.advice}
    if not any(names for names, _ in given.values()):
        return finding
    first = [_with(advice, names) for advice, (names, leads) in given.items() if not leads]
    last = [_with(advice, names) for advice, (names, leads) in given.items() if leads]
    return finding.model_copy(update={"advice": (*first, *last)})


def _with(advice: str, names: list[str]) -> str:
    return f"{advice} (the start has {', '.join(names)} already)" if names else advice


def _given(facts: LogFacts, advice: str) -> tuple[list[str], bool]:
    """Return which arguments that it advises are given with that very value, and whether it begins with one."""
    advised, not_to_give = _words()
    names: dict[str, bool] = {}
    for found in advised.finditer(advice):
        name = found[1].replace("-", "_")
        value = facts.arguments.get(name, "None")
        switch = name.startswith(_SWITCH) and value == "True"
        backend = name.endswith("_backend") and value == found[2]
        if (switch or backend) and not not_to_give.search(advice[: found.start()]):
            said = f"--{found[1]}" if switch else f"--{found[1]} {found[2]}"
            names.setdefault(said, not advice[: found.start()].removeprefix("once ").removeprefix("with "))
    return list(names), any(names.values())
