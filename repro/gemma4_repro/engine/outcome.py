"""What one arm did, as read from outside: how it ended, what its log raised, and what it left on disk."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

RESULT_SCHEMA_VERSION = "1.0"


class Ending(StrEnum):
    COMPLETED = "completed"
    CRASHED = "crashed"
    DIED_AT_START = "died at start"
    TIMED_OUT = "timed out"
    NO_RESULT = "ended without a readable result"


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class Answer(_Record):
    """One prompt's continuation. verify_rounds: how often drafts were verified for it."""

    prompt: int = Field(ge=0)
    output_ids: tuple[int, ...]
    verify_rounds: int = Field(ge=0)


class IdleCheck(_Record):
    """After the load. used_*: as SGLang reports it, the larger of its pools."""

    leak_checker_ran: bool
    flush_succeeded: bool
    used_tokens_after_flush: int
    used_share_after_flush: float


class ArmResult(_Record):
    """What an arm's process wrote at its end: result.json.

    Attributes:
        paths: per patch that counts which path its calls took, calls by path; recorded for comparisons.
    """

    schema_version: Literal["1.0"] = RESULT_SCHEMA_VERSION
    arm: str
    sglang_version: str
    start_s: float
    load_s: float
    answers: tuple[Answer, ...]
    idle: IdleCheck
    paths: dict[str, dict[str, int]] = {}

    @property
    def output_tokens(self) -> int:
        return sum(len(answer.output_ids) for answer in self.answers)

    @property
    def accept_length(self) -> float | None:
        """Mean tokens per verify round, the target's own token included; None without speculation.

        An answer that its prefill already ended had no round, so its token does not count.
        """
        drafted = [answer for answer in self.answers if answer.verify_rounds]
        rounds = sum(answer.verify_rounds for answer in drafted)
        return sum(len(answer.output_ids) for answer in drafted) / rounds if rounds else None


@dataclass(frozen=True)
class Raised:
    """An exception in the log. type_name: without its module."""

    type_name: str
    message: str


@dataclass(frozen=True)
class Outcome:
    """exit_code: None if a signal ended the arm's process; then signal_name says which."""

    arm: str
    ending: Ending
    folder: Path
    duration_s: float
    exit_code: int | None
    signal_name: str | None
    raised: tuple[Raised, ...]
    result: ArmResult | None
    problem: str | None = None

    @property
    def log(self) -> Path:
        return self.folder / "log.txt"

    @property
    def drafts(self) -> Path:
        return self.folder / "drafts.jsonl"

    @property
    def dumps(self) -> Path:
        return self.folder / "dumps"

    def first(self, type_name: str) -> Raised | None:
        """Return the first exception of that type in the log."""
        return next((raised for raised in self.raised if raised.type_name == type_name), None)

    def how_it_ended(self) -> dict[str, Any]:
        """Say for reports: ending, exit code or signal, and what was raised, each once."""
        seen = dict.fromkeys(self.raised)
        return {
            "ending": self.ending.value,
            "exit_code": self.exit_code,
            "signal": self.signal_name,
            "problem": self.problem,
            "raised": [{"type": raised.type_name, "message": raised.message} for raised in seen],
        }
