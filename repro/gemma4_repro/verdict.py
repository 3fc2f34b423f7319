"""Holds every arm's outcome against what the scenario expects. Pure but for the files that expectations read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from gemma4_dumps.errors import ExitCode
from gemma4_repro.engine.outcome import Outcome
from gemma4_repro.expectation import Check, Status
from gemma4_repro.scenario import Scenario


class RanArm(Protocol):
    """What a verdict says of the arm that ran: a scenario's, or a cell of the crash matrix."""

    @property
    def id(self) -> str: ...
    @property
    def title(self) -> str: ...
    @property
    def device_model(self) -> str: ...
    @property
    def environment(self) -> Mapping[str, str]: ...


@dataclass(frozen=True)
class ArmVerdict:
    """An arm, how it ended, and what came of each check."""

    arm: RanArm
    outcome: Outcome
    checks: tuple[Check, ...]

    @property
    def surprised(self) -> bool:
        return any(check.status is Status.FAILED for check in self.checks)

    @property
    def status(self) -> str:
        """`ok`, `surprise` or `not checked`."""
        if self.surprised:
            return "surprise"
        return "ok" if any(check.status is Status.OK for check in self.checks) else "not checked"

    @property
    def numbers(self) -> dict[str, Any]:
        """What all checks measured, by name."""
        return {name: value for check in self.checks for name, value in check.numbers.items()}


def judge(scenario: Scenario, outcomes: Mapping[str, Outcome]) -> tuple[ArmVerdict, ...]:
    """Return one verdict per arm that ran, in the scenario's order."""
    verdicts = []
    for arm in scenario.arms:
        if arm.id not in outcomes:
            continue
        outcome = outcomes[arm.id]
        checks = (e.check(outcome, outcomes.get(e.reference) if e.reference else None) for e in arm.expectations)
        verdicts.append(ArmVerdict(arm, outcome, tuple(checks)))
    return tuple(verdicts)


def exit_code(verdicts: tuple[ArmVerdict, ...]) -> ExitCode:
    """0 all as expected, 1 an expectation failed, 5 nothing was checked."""
    if any(verdict.surprised for verdict in verdicts):
        return ExitCode.VIOLATION
    checked = any(check.status is Status.OK for verdict in verdicts for check in verdict.checks)
    return ExitCode.OK if checked else ExitCode.NOTHING_CHECKED
