"""Scores that somebody noted of one evaluation under several starts: in what the good ones differ is what to change."""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import product
from typing import NamedTuple

from gemma4_triage.logs.facts import LogFacts, Remark

NAME = "scored"
_MOST = 24  # rows
_SCORE = re.compile(r"(?i)\b(?:score|accuracy|acc)\b\W{0,3}(\d(?:\.\d+)?)\b(?!\s*%)")
_GIVEN = re.compile(r"(?:--)?([a-z][a-z\d]*(?:[-_][a-z\d]+)+)(?:=([\w./-]+))?")
_APART = 0.03  # of scores; less is what sampling does


class _Row(NamedTuple):
    """A score, and what the start was.

    Attributes:
        line: of the log.
        given: arguments and what they were.
        score: from 0 to 1.
    """

    line: int
    given: Mapping[str, str]
    score: float


def keep(kept: dict[str, Remark], name: str) -> None:
    """Keep every line with a score, not the last alone."""
    if name != NAME:
        return
    for number in range(_MOST):
        if kept.setdefault(f"{NAME} {number}", kept[name]) is kept[name]:
            return


def between_scores(facts: LogFacts) -> tuple[str, str] | None:
    """Return change and reason where rows of scores differ in one argument alone; None if none do."""
    rows = _rows(facts)
    own = next((row for row in rows if row.given is facts.arguments), None)
    bad = own or min(rows, key=lambda row: row.score, default=None)
    if bad is None or len(rows) < 2:
        return None
    changes: list[tuple[float, str, str, _Row]] = []
    for row, other in product(rows, rows):
        names = (
            set(row.given) & set(other.given)
            if facts.arguments in (row.given, other.given)
            else {*row.given, *other.given}
        )
        differs = [name for name in names if row.given.get(name) != other.given.get(name)]
        shared = names - set(differs)
        if row.score - other.score >= _APART and len(differs) == 1 and (shared or len(names) == 1):
            name = differs[0]
            changes.append((row.score, name, row.given.get(name, ""), other))
    mine = [one for one in changes if one[3] is bad]
    if not mine:
        return None
    best: dict[str, tuple[float, str]] = {}
    for score, name, value, _ in mine:
        if name not in best or score > best[name][0]:
            best[name] = score, value
    ways = " or ".join(
        f"--{name.replace('_', '-')} {value}" if value not in ("", "True") else f"--{name.replace('_', '-')}"
        for name, (_, value) in best.items()
    )
    either = "It takes both options to make answers wrong, so that either change is enough. " * (len(best) > 1)
    return (
        f"with {ways}, as the scores that were noted have it",
        f"line {bad.line} has {bad.score:.2f}, and rows that differ from it in this alone have up to "
        f"{max(score for score, _ in best.values()):.2f}: weights, their quantisation, prompts and sampling are the "
        f"same in all rows, and right. {either}Keep the good one, take a later release, and report the rows",
    )


def _rows(facts: LogFacts) -> list[_Row]:
    found = []
    for number in range(_MOST):
        said = facts.remarks.get(f"{NAME} {number}")
        if said is None:
            break
        score = _SCORE.search(said.text)
        if score is None or not 0 <= float(score[1]) <= 1:
            continue
        given = {name.replace("-", "_"): value or "True" for name, value in _GIVEN.findall(said.text[: score.start()])}
        found.append(_Row(said.place.line, given or facts.arguments, float(score[1])))
    # Without a row of several, nothing is compared.
    return found if any(row.given is not facts.arguments for row in found) else []
