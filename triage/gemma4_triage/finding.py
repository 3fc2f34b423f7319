"""The record that every analysis ends in: `diagnose`, `logs` and reports print and serialise it."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

from pydantic import BaseModel, ConfigDict

from gemma4_dumps.structures import Defect, Structure


class Confidence(StrEnum):
    """How sure a finding is.

    `certain`: the values leave no other cause. `likely`: they fit this cause, and others would show more or less.
    `possible`: they do not contradict it.
    """

    CERTAIN = "certain"
    LIKELY = "likely"
    POSSIBLE = "possible"


class Kind(StrEnum):
    """What a finding is.

    A cause is why something went wrong. A note is a known property of the release that harms nothing: it is no
    incident, is shown last, and is evidence of no cause.
    """

    CAUSE = "cause"
    NOTE = "note"


_ORDER = {Confidence.CERTAIN: 0, Confidence.LIKELY: 1, Confidence.POSSIBLE: 2}


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True)


class Evidence(_Record):
    """One value that a reader can look up.

    Attributes:
        source: A dump id or a file name.
        field: Where in it: a manifest field ("offences.0.value"), a tensor entry ("page_table[5, 7]"), a field of an
            event ("events.14.site") or a line ("line 1042").
        value: As it stands there; None where it does not.
        meaning: What it says about the cause.
    """

    source: str
    field: str
    value: str | int | float | bool | None
    meaning: str


class Finding(_Record):
    """A cause, and why it is believed.

    Attributes:
        rule: Id of the rule that found it.
        cause: One sentence.
        confidence: How sure.
        evidence: What it rests on.
        ruled_out_if: Observations that would contradict it, and that the evidence does not decide.
        advice: What to do or to look at, in words.
        next_commands: To run, in this order.
        fix: Id of our patch, if there is one.
        upstream: Issues and pull requests, as "SGLang 26957".
        kind: A cause or a note.
        structure: What the cause says is wrong; None where it does not say.
        defect: In which way; None where the cause does not say.
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
    kind: Kind = Kind.CAUSE
    structure: Structure | None = None
    defect: Defect | None = None

    @property
    def is_note(self) -> bool:
        """Return whether it is a note, and no incident."""
        return self.kind is Kind.NOTE

    @property
    def label(self) -> str:
        """Return what a reader sees beside the rule: `note`, or how sure the cause is."""
        return Kind.NOTE.value if self.is_note else self.confidence.value


def causes(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return those that are no notes: what makes an incident."""
    return tuple(finding for finding in findings if not finding.is_note)


def more_certain(one: Confidence, other: Confidence) -> Confidence:
    """Return the more certain of the two."""
    return min(one, other, key=_ORDER.__getitem__)


def at_most(confidence: Confidence, cap: Confidence) -> Confidence:
    """Return `confidence`, or `cap` where that is less certain."""
    return max(confidence, cap, key=_ORDER.__getitem__)


def ranked(findings: Iterable[Finding], leads: str = "") -> tuple[Finding, ...]:
    """Return the most certain first, of those the one with more evidence, else in the order given.

    Args:
        findings: to rank.
        leads: a rule whose likely findings stand before all that are as likely.
    """

    def place(one: Finding) -> tuple[int, bool, int]:
        behind = one.rule != leads or one.confidence is not Confidence.LIKELY
        return _ORDER[one.confidence], behind, -len(one.evidence)

    return tuple(sorted(findings, key=place))
