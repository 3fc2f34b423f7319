"""Whether this installation can run a scenario, found out without importing torch or sglang."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from typing import Any

from gemma4_repro.errors import EnvironmentLacks
from gemma4_repro.scenario import Scenario
from gemma4_repro.toys import toy_path
from gemma4_runtime.targets import TARGETS

_HOW_TO_INSTALL = "in a clone: make setup, or pip install -c constraints.txt '.[runtime]'"


def check_sglang() -> str:
    """The release of SGLang that is installed. Raises EnvironmentLacks if it is absent or not one that is known."""
    known = ", ".join(TARGETS)
    try:
        installed = version("sglang")
    except PackageNotFoundError:
        raise EnvironmentLacks("SGLang is not installed, and a reproduction runs its engine", _HOW_TO_INSTALL) from None
    if installed not in TARGETS:
        raise EnvironmentLacks(
            f"SGLang {installed} is installed, and the patched runtime knows {known}",
            _HOW_TO_INSTALL,
        )
    return installed


def model_arguments(scenario: Scenario) -> dict[str, Any]:
    """Engine arguments that name the toys: target first, then the assistant. Raises EnvironmentLacks."""
    try:
        target, assistant = (str(toy_path(name)) for name in scenario.toys)
    except FileNotFoundError as error:
        message, _, hint = str(error).rpartition("\n")
        raise EnvironmentLacks(message, hint) from error
    return {"model_path": target, "speculative_draft_model_path": assistant}
