"""Exit codes, and the errors that are a person's to act on.

What breaks an invariant of ours is a plain exception and no `UserError`: that is a bug.
"""

# Nothing heavy is imported here: the error boundary of the command line needs it.

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """What a process of this project ends with. README and `gemma4-triage --help` say the same in words."""

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
    """Base of every error that a person can act on.

    The command line prints it as `error: message` and `hint: hint` and ends with `exit_code`, which the class says.

    Args:
        message: What was found, and what was expected.
        hint: What to do next; the class's own if there is none, which may be empty.
    """

    exit_code = ExitCode.USAGE
    hint = ""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint or type(self).hint


class DumpError(UserError):
    """Base of every error that reading or finding a dump may raise."""

    exit_code = ExitCode.DUMP_UNREADABLE
    hint = "gemma4-triage dumps verify DUMP shows what is damaged; gemma4-triage dumps list which dumps are complete"


class DumpNotFound(DumpError):
    """No dump has that name, path or prefix, or the prefix fits several."""

    exit_code = ExitCode.USAGE
    hint = "gemma4-triage dumps list shows the dumps; --dir names another directory"


class DumpUnreadable(DumpError):
    """The dump is torn, damaged, contradicts itself, or is not a dump."""


class StoreUnreadable(DumpUnreadable):
    """The folder that dumps are in cannot be listed."""

    hint = "--dir or SGLANG_TRTLLM_MHA_DEBUG_DIR names the directory that holds the dumps"


class DumpIncompatible(DumpError):
    """The dump was written with another major version of the schema."""

    hint = "read it with the release of gemma4-triage that wrote it"
