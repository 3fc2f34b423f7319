"""What a command of ours may refuse or find missing: the user errors of this package, by their exit codes."""

from __future__ import annotations

from gemma4_dumps.errors import ExitCode, UserError


class UsageMistake(UserError):
    """An argument that cannot be understood, or names something that is not there."""


class ExpectationFailed(UserError):
    """What was checked is not as it should be."""

    exit_code = ExitCode.VIOLATION


class EnvironmentCannot(UserError):
    """This machine or installation lacks something that the command needs."""

    exit_code = ExitCode.ENVIRONMENT


class TraceDamaged(UserError):
    """A profiler's trace that is torn, or is none."""

    exit_code = ExitCode.DUMP_UNREADABLE


class NothingChecked(UserError):
    """The command ran, but there was nothing to look at: neither good nor bad."""

    exit_code = ExitCode.NOTHING_CHECKED


class Interrupted(UserError):
    """Control-C, or SIGINT, in a command that had nothing to show by then."""

    exit_code = ExitCode.INTERRUPTED
