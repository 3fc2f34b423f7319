"""What an arm is expected to show. An expectation is a record that can be held against an outcome.

An expectation with a `reference` compares with another arm. If that arm did not run to its end, the comparison was not
made, and the check says so: it neither passes nor fails.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from gemma4_repro.engine.outcome import Outcome


class Status(StrEnum):
    OK = "ok"
    FAILED = "failed"
    NOT_CHECKED = "not checked"


@dataclass(frozen=True)
class Check:
    """numbers: what was measured, by name with its unit."""

    expected: str
    observed: str
    status: Status
    numbers: Mapping[str, Any] = field(default_factory=dict)


class Expectation(ABC):
    """Base of all. `text` is what a person reads under "expected"."""

    @property
    def reference(self) -> str | None:
        """The id of the arm that this compares with, or None."""
        return None

    @property
    @abstractmethod
    def text(self) -> str: ...

    @abstractmethod
    def check(self, outcome: Outcome, reference: Outcome | None) -> Check:
        """Hold it against an outcome; `reference` is the outcome of the reference arm, None if that did not run."""

    def judge(self, good: bool, observed: str, numbers: Mapping[str, Any] | None = None) -> Check:
        return Check(self.text, observed, Status.OK if good else Status.FAILED, numbers or {})

    def not_compared(self, reference: Outcome | None) -> Check:
        why = "did not run" if reference is None else f"gave nothing to compare with ({reference.ending.value})"
        observed = f"the comparison was not made: arm {self.reference} {why}"
        return Check(self.text, observed, Status.NOT_CHECKED)
