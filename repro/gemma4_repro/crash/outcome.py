"""How a cell's run ended, and the expectations that it is held against."""

from __future__ import annotations

from dataclasses import dataclass

from gemma4_dumps.listing import DumpEntry
from gemma4_dumps.wording import number_of
from gemma4_repro.engine.outcome import Ending, Outcome
from gemma4_repro.expect_ending import ending_text
from gemma4_repro.expect_evidence import dumps_of
from gemma4_repro.expectation import Check, Expectation

NOTED = ("geometry", "window_width")
"""A dump that says what this release always does, crash or not: its sliding layers see a key too many."""


@dataclass(frozen=True)
class ServedLoad:
    """What the client made of a load. answered: None if it did not live to say. accept_length: None without MTP."""

    id: str
    requests: int
    answered: int | None
    duration_s: float
    exit_code: int | None
    accept_length: float | None = None


@dataclass(frozen=True)
class Served(Outcome):
    """An outcome of a server and its client. loads: those that were begun. stop: why the run was stopped, in words."""

    loads: tuple[ServedLoad, ...] = ()
    stop: str = ""


@dataclass(frozen=True)
class Answered(Expectation):
    """Every request of every load is answered, and the server is still there afterwards."""

    @property
    def text(self) -> str:
        return "every request is answered and the server lives"

    def check(self, outcome: Outcome, reference: Outcome | None) -> Check:
        assert isinstance(outcome, Served)
        counts = ", ".join(f"{load.id} {_answered(load)} of {load.requests}" for load in outcome.loads)
        whole = all(load.answered == load.requests for load in outcome.loads)
        good = outcome.ending is Ending.COMPLETED and bool(outcome.loads) and whole and not outcome.raised
        lengths = {f"accept_length_{load.id}": load.accept_length for load in outcome.loads if load.accept_length}
        return self.judge(good, f"{ending_text(outcome)}; answered: {counts or 'nothing was asked'}", lengths)


@dataclass(frozen=True)
class Dies(Expectation):
    """The server ends by itself, and its log raises one of these exceptions first."""

    exceptions: tuple[str, ...]
    at_start: bool = False

    @property
    def text(self) -> str:
        return f"the server dies of {' or '.join(self.exceptions)}{' at its start' if self.at_start else ''}"

    def check(self, outcome: Outcome, reference: Outcome | None) -> Check:
        endings = (Ending.DIED_AT_START,) if self.at_start else (Ending.DIED_AT_START, Ending.CRASHED)
        raised = bool(outcome.raised) and outcome.raised[0].type_name in self.exceptions
        return self.judge(outcome.ending in endings and raised, ending_text(outcome))


@dataclass(frozen=True)
class LeavesDump(Expectation):
    """A probe of this rule wrote a dump that says more than what this release always does."""

    rule: str

    @property
    def text(self) -> str:
        return f"a dump of {self.rule}"

    def check(self, outcome: Outcome, reference: Outcome | None) -> Check:
        found = violations(outcome)
        good = any(entry.manifest is not None and entry.manifest.rule == self.rule for entry in found)
        return self.judge(good, _rules(found))


@dataclass(frozen=True)
class LeavesNoDump(Expectation):
    """No probe found anything but what this release always does."""

    @property
    def text(self) -> str:
        return "no violation is dumped"

    def check(self, outcome: Outcome, reference: Outcome | None) -> Check:
        found = violations(outcome)
        return self.judge(not found, _rules(found))


def violations(outcome: Outcome) -> list[DumpEntry]:
    """Return the dumps, newest first, without those of NOTED; torn ones count."""
    return [
        entry
        for entry in dumps_of(outcome)
        if entry.manifest is None or (entry.manifest.rule, entry.manifest.verdict) != NOTED
    ]


def _answered(load: ServedLoad) -> str:
    return "?" if load.answered is None else str(load.answered)


def _rules(found: list[DumpEntry]) -> str:
    if not found:
        return "no dump"
    rules = sorted({entry.manifest.rule if entry.manifest else "unreadable" for entry in found})
    return f"{number_of(len(found), 'dump')}: {', '.join(rules)}"
