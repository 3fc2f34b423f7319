"""How an arm should end: by a crash of one kind, by a trap before it, or not at all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gemma4_repro.engine.outcome import Ending, Outcome
from gemma4_repro.expectation import Check, Expectation


@dataclass(frozen=True)
class Crashes(Expectation):
    """The engine dies while it serves, and `exception` is the first thing that its log raises."""

    exception: str

    @property
    def text(self) -> str:
        return f"crash by {self.exception}"

    def check(self, outcome: Outcome, reference: Outcome | None) -> Check:
        first = outcome.raised[0] if outcome.raised else None
        good = outcome.ending is Ending.CRASHED and first is not None and first.type_name == self.exception
        return self.judge(good, ending_text(outcome))


@dataclass(frozen=True)
class TrapsBefore(Expectation):
    """The first thing raised is `exception`, and `fault` never is: the probe was there before the kernel."""

    exception: str
    fault: str

    @property
    def text(self) -> str:
        return f"{self.exception} before any {self.fault}"

    def check(self, outcome: Outcome, reference: Outcome | None) -> Check:
        trapped = bool(outcome.raised) and outcome.raised[0].type_name == self.exception
        good = outcome.ending is Ending.CRASHED and trapped and outcome.first(self.fault) is None
        return self.judge(good, ending_text(outcome))


@dataclass(frozen=True)
class Completes(Expectation):
    """The load runs to its end and nothing is raised on the way."""

    @property
    def text(self) -> str:
        return "completion, nothing raised"

    def check(self, outcome: Outcome, reference: Outcome | None) -> Check:
        good = outcome.ending is Ending.COMPLETED and outcome.result is not None and not outcome.raised
        return self.judge(good, ending_text(outcome), {} if outcome.result is None else _progress(outcome))


def ending_text(outcome: Outcome) -> str:
    """Return how it ended as far as known: `crashed (SIGKILL): IllegalAddress: page 65 of 65`."""
    by = f" ({outcome.signal_name})" if outcome.signal_name else ""
    if outcome.exit_code:
        by = f" (exit code {outcome.exit_code})"
    what = outcome.problem or (f"{outcome.raised[0].type_name}: {outcome.raised[0].message}" if outcome.raised else "")
    return f"{outcome.ending.value}{by}" + (f": {what}" if what else "")


def _progress(outcome: Outcome) -> dict[str, Any]:
    assert outcome.result is not None
    length = outcome.result.accept_length
    known = {"output_tokens": outcome.result.output_tokens, "load_s": round(outcome.result.load_s, 2)}
    return known if length is None else known | {"accept_length": round(length, 6)}
