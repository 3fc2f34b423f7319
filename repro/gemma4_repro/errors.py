"""What can keep a scenario from running. Each error knows the process exit code that the command line uses for it."""

from __future__ import annotations


class ReproError(RuntimeError):
    """Nothing was reproduced. `hint` says what to do next; it may be empty."""

    exit_code = 3

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class UnknownName(ReproError):
    """A scenario or an arm that the catalog does not have; the text lists those it has."""

    exit_code = 2


class OutputRefused(ReproError):
    """The run folder holds files already and nobody asked to overwrite them."""

    exit_code = 2


class EnvironmentLacks(ReproError):
    """This machine or installation cannot run the scenario."""


class OutputUnwritable(EnvironmentLacks):
    """The run folder cannot be written: permissions, or no space left."""


class PreforkFailed(EnvironmentLacks):
    """The process that imports SGLang ended or hung before it could start an arm."""
