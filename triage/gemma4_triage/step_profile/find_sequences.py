"""Looks for the launches that our fused ops would stand for, in each stream of each step."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from gemma4_triage.step_profile.replaceable_sequences import FAMILY, REPLACEABLE, role_of
from gemma4_triage.step_profile.steps import Step
from gemma4_triage.step_profile.trace_tables import Launches, Numbers

# Each role is one character of a text, so that a sequence is a regular expression. None is special in one.
_FIRST_CHARACTER = 0xE000
_TAKEN = chr(_FIRST_CHARACTER - 1)


@dataclass
class Found:
    """What was found in all steps together. gpu_us is of the launches that would go, each by itself."""

    op: str
    what: str
    includes: str
    matches: int = 0
    launches: int = 0
    gpu_us: float = 0


@dataclass
class Replaced:
    """ops: in the table's order. launches, gpu_us: of every launch that any op would replace, each counted once."""

    ops: list[Found]
    launches: int = 0
    gpu_us: float = 0


def find_sequences(launches: Launches, steps: Iterable[Step], names: Sequence[str]) -> Replaced:
    """Find them inside steps: a sequence does not go over the end of one."""
    alphabet: dict[str, str] = {}
    characters = [_character(role_of(name), alphabet) for name in names]
    patterns = {op.op: [_compile(sequence, alphabet) for sequence in op.sequences] for op in REPLACEABLE}
    result = Replaced([Found(op.op, op.what, op.includes) for op in REPLACEABLE])
    for step in steps:
        part = launches.part(slice(step.first, step.last))
        for stream in np.unique(part.stream):
            rows = np.flatnonzero(part.stream == stream)
            text = "".join(characters[name] for name in part.name[rows].tolist())
            durations = (part.end_us - part.start_us)[rows]
            _search(text, durations, patterns, result)
    return result


def _search(text: str, durations: Numbers, patterns: dict[str, list[re.Pattern[str]]], result: Replaced) -> None:
    left, covered = text, np.zeros(len(text), bool)
    taken: dict[str, list[int]] = {}
    for op, found in zip(REPLACEABLE, result.ops, strict=True):
        here = _with(left, text, taken[op.includes]) if op.includes else left
        places = _matches(here, patterns[op.op])
        rows = [row for match in places for row in match]
        found.matches += len(places)
        found.launches += len(rows)
        found.gpu_us += float(durations[np.array(rows, int)].sum())
        covered[np.array(rows, int)] = True
        if not op.includes:
            taken[op.op] = rows
            left = _without(left, rows)
    result.launches += int(covered.sum())
    result.gpu_us += float(durations[covered].sum())


def _matches(text: str, patterns: Iterable[re.Pattern[str]]) -> list[list[int]]:
    """Return per match the places of its launches; no place is in two matches of one op."""
    found = []
    for pattern in patterns:
        here = [[match.start(group) for group in range(1, pattern.groups + 1)] for match in pattern.finditer(text)]
        text = _without(text, [row for match in here for row in match])
        found += here
    return found


def _without(text: str, places: Iterable[int]) -> str:
    characters = list(text)
    for place in places:
        characters[place] = _TAKEN
    return "".join(characters)


def _with(left: str, text: str, places: Iterable[int]) -> str:
    """`left` with these places as they are in `text`."""
    characters = list(left)
    for place in places:
        characters[place] = text[place]
    return "".join(characters)


def _compile(sequence: str, alphabet: dict[str, str]) -> re.Pattern[str]:
    parts = []
    for word in sequence.split():
        if word.startswith("["):
            families = [_character(FAMILY + family, alphabet) for family in word.strip("[]").split(",")]
            parts.append(f"[{''.join(families)}]*")
        else:
            parts.append(f"({_character(word, alphabet)})")
    return re.compile("".join(parts))


def _character(role: str, alphabet: dict[str, str]) -> str:
    return alphabet.setdefault(role, chr(_FIRST_CHARACTER + len(alphabet)))
