"""What can keep a scenario or a measurement from running."""

from __future__ import annotations

from gemma4_dumps.errors import ExitCode, UserError


class ReproError(UserError):
    """Nothing was reproduced."""

    exit_code = ExitCode.ENVIRONMENT


class UnknownName(ReproError):
    """A scenario or an arm that the catalog does not have; the text lists those it has."""

    exit_code = ExitCode.USAGE


class OutputRefused(ReproError):
    """The run folder holds files already and nobody asked to overwrite them."""

    exit_code = ExitCode.USAGE


class EnvironmentLacks(ReproError):
    """This machine or installation cannot run the scenario."""


class OutputUnwritable(EnvironmentLacks):
    """The run folder cannot be written: permissions, or no space left."""


class PreforkFailed(EnvironmentLacks):
    """The process that imports SGLang ended or hung before it could start an arm."""
