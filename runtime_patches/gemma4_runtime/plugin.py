"""The entry point that SGLang calls in every process: read settings, register what they ask for, verify, or stop.

SGLang swallows an Exception from a plugin and serves on without it. A server that was asked to be guarded and is not
is worse than one that does not start, so everything here ends in SystemExit, which SGLang lets pass.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable
from types import TracebackType
from typing import Any, NoReturn

from gemma4_dumps.errors import ExitCode
from gemma4_runtime.errors import NotServed, RuntimePatchError
from gemma4_runtime.settings import VARIABLES, Settings, read_settings


def load() -> None:
    """Attach what the environment asks for. With no variable set, nothing is imported and nothing is attached."""
    if not any(value for name, value in os.environ.items() if name in VARIABLES or name.startswith("GEMMA4_TRIAGE_")):
        return
    try:
        settings = read_settings()
        if not settings.wants_nothing:
            _attach(settings)
    except RuntimePatchError as error:
        _stop(f"{type(error).__name__}: {error}", error.exit_code, error.hint)
    # Broad on purpose: whatever went wrong, SGLang would log it and serve without the guards that were asked for.
    except Exception as error:  # noqa: BLE001
        traceback.print_exc()
        _stop(f"this is a bug in gemma4-triage: {type(error).__name__}: {error}", ExitCode.BUG)


def _attach(settings: Settings) -> None:
    # Imported here so that a server which asks for nothing pays for nothing.
    from gemma4_runtime.session import Session

    Session(settings).start()
    sys.excepthook = _refusing(sys.excepthook)


def _refusing(before: Callable[[type[BaseException], BaseException, TracebackType | None], object]) -> Any:
    """Return an excepthook for which a refused argument is no crash: its reason, and the exit code of a usage error.

    SGLang checks arguments where nothing catches what is raised.
    """

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if isinstance(error, NotServed):
            _stop(error.message, error.exit_code, error.hint)
        before(kind, error, trace)

    return hook


def _stop(message: str, exit_code: ExitCode, hint: str = "") -> NoReturn:
    print(f"gemma4-triage: {message}", file=sys.stderr, flush=True)
    if hint:
        print(f"gemma4-triage: hint: {hint}", file=sys.stderr, flush=True)
    raise SystemExit(exit_code)
