"""Errors that are the user's to act on, and exit codes. Invariants of ours are plain exceptions: those are bugs."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gemma4_repro.errors import ReproError


class ExitCode(IntEnum):
    OK = 0
    VIOLATION = 1
    USAGE = 2
    ENVIRONMENT = 3
    DUMP_UNREADABLE = 4
    NOTHING_CHECKED = 5
    BUG = 70
    INTERRUPTED = 130
    BROKEN_PIPE = 141


class UserError(Exception):
    """Becomes `error: message`, `hint: hint` on stderr and the exit code. hint: what to do next, may be empty."""

    exit_code = ExitCode.USAGE

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class UsageMistake(UserError):
    """An argument that cannot be understood, or names something that is not there."""


class ExpectationFailed(UserError):
    """What was checked is not as it should be."""

    exit_code = ExitCode.VIOLATION


class EnvironmentCannot(UserError):
    """This machine or installation lacks something that the command needs."""

    exit_code = ExitCode.ENVIRONMENT


class TraceUnreadable(UserError):
    """A profiler's trace that is torn, or is none."""

    exit_code = ExitCode.DUMP_UNREADABLE


class NothingChecked(UserError):
    """The command ran, but there was nothing to look at: neither good nor bad."""

    exit_code = ExitCode.NOTHING_CHECKED


class Interrupted(UserError):
    """Control-C, or SIGINT, in a command that had nothing to show by then."""

    exit_code = ExitCode.INTERRUPTED


def for_user(error: ReproError) -> UserError:
    """What kept a reproduction or a measurement from running, as the user's to act on."""
    kind = UsageMistake if error.exit_code == ExitCode.USAGE else EnvironmentCannot
    return kind(str(error), error.hint)
