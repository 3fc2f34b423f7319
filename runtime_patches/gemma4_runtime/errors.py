"""Errors of the runtime layer. The plugin ends a server with the exit code of the one that stopped it."""

from __future__ import annotations

from gemma4_dumps.errors import ExitCode, UserError
from gemma4_dumps.wording import DUMP_MARK


class RuntimePatchError(UserError):
    """The patched runtime cannot do what was asked; nothing is served half-patched."""

    exit_code = ExitCode.ENVIRONMENT


class SettingsError(RuntimePatchError):
    """A setting cannot be read. The text names the variable, the value and what is allowed."""

    exit_code = ExitCode.USAGE
    hint = "correct or unset the variable; a server would refuse to start"


class PatchTargetMissing(RuntimePatchError):
    """A patch names an SGLang symbol that this release does not have."""


class UnsupportedRelease(RuntimePatchError):
    """A patch does not declare support for the SGLang release that is installed."""


class PatchConflict(RuntimePatchError):
    """Two patches claim the same target in ways that cannot both hold."""


class VerificationFailed(RuntimePatchError):
    """A patch was registered but is not what SGLang's symbol now leads to."""


class HostEngineRefused(RuntimePatchError):
    """The host engine was asked for where it must not or cannot run."""


class NotServed(RuntimePatchError, ValueError):
    """A patch that is on does not serve what the server's arguments ask for. The text names both, and why.

    It is raised from within SGLang's own check of its arguments, which raises ValueError too.
    """

    exit_code = ExitCode.USAGE
    hint = "gemma4-triage patches explain ID says what a patch serves; gemma4-triage patches list names them all"


class UnusableSpecInfo(RuntimeError):
    """Requests that are not finished have lost what their next draft starts from; to go on could give wrong tokens."""


class PenaltiesLost(RuntimeError):
    """A batch has lost what its requests' penalties were counted from; to go on would give wrong tokens."""


class TrappedViolation(RuntimeError):
    """Raised by a probe in `trap` mode, before the kernel that would have read or written out of bounds.

    `dump` is the path of the dump that holds the evidence, or None with `dump_error` saying why there is none.
    """

    def __init__(self, message: str, dump: str | None, dump_error: str | None = None):
        where = f"{DUMP_MARK}{dump}]" if dump else f" [no dump was written: {dump_error}]"
        super().__init__(f"{message}{where}")
        self.dump = dump
        self.dump_error = dump_error
