"""The record that every analysis ends in: `diagnose`, `logs` and reports print and serialise the same one."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

from pydantic import BaseModel, ConfigDict


class Confidence(StrEnum):
    """certain: the values leave no other cause. likely: they fit this cause, and others would show more or less.
    possible: they do not contradict it."""

    CERTAIN = "certain"
    LIKELY = "likely"
    POSSIBLE = "possible"


_ORDER = {Confidence.CERTAIN: 0, Confidence.LIKELY: 1, Confidence.POSSIBLE: 2}


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True)


class Evidence(_Record):
    """One value that a reader can look up.

    source: a dump id or a file name. field: where in it: a manifest field ("role", "offences.0.value"), a tensor entry
    ("page_table[5, 7]"), a field of an event ("events.14.site") or a line ("line 1042"). value: as it stands there;
    None for a field that is not there. meaning: what it says about the cause.
    """

    source: str
    field: str
    value: str | int | float | bool | None
    meaning: str


class Finding(_Record):
    """A cause, and why it is believed.

    rule: id of the rule that found it. cause: one sentence. ruled_out_if: observations that would contradict it.
    advice: what to do or to look at, in words. next_commands: to run, the first one first. fix: id of a patch of ours,
    if there is one. upstream: issues and pull requests, as "SGLang 26957".
    """

    rule: str
    cause: str
    confidence: Confidence
    evidence: tuple[Evidence, ...]
    ruled_out_if: tuple[str, ...] = ()
    advice: tuple[str, ...] = ()
    next_commands: tuple[str, ...] = ()
    fix: str | None = None
    upstream: tuple[str, ...] = ()


def more_certain(one: Confidence, other: Confidence) -> Confidence:
    """Of the two."""
    return min(one, other, key=_ORDER.__getitem__)


def ranked(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """The most certain first, and of those the one with more evidence; otherwise in the order given."""
    return tuple(sorted(findings, key=lambda finding: (_ORDER[finding.confidence], -len(finding.evidence))))
