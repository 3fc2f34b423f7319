"""What is in force in this process: its settings, the ids of its patches, its guard and its manifest.

Hooks and checks ask here. `session.py` attaches the patches, and it alone sets what is in force; only the plugin
imports that, and import-linter keeps it so.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gemma4_runtime.errors import RuntimePatchError
from gemma4_runtime.guard import Guard
from gemma4_runtime.settings import Settings


@dataclass
class InForce:
    """The answers that a session gives to its process.

    Attributes:
        settings: What was asked for.
        ids: Of the patches. A process that measures switches among those that are attached.
        guard: What probes report to.
        note: Changes the row of the patch of that id in the guard manifest, and writes the manifest again.
        stop: Takes all patches off again.
        note_end: Writes into the guard manifest how this process ends, and why.
    """

    settings: Settings
    ids: frozenset[str]
    guard: Guard
    note: Callable[[str, Callable[[dict[str, Any]], None]], None]
    stop: Callable[[], None]
    note_end: Callable[[str, str], None]


in_force: InForce | None = None
"""None where no session has started, and after one has stopped."""


def required() -> InForce:
    """Return what is in force.

    Raises:
        RuntimePatchError: nothing is; a hook outlived its session.
    """
    if in_force is None:
        raise RuntimePatchError("a probe fired without a session; uninstall did not take it off")
    return in_force


def settings() -> Settings:
    """Return the settings in force. Raises RuntimePatchError, see `required`."""
    return required().settings


def guard() -> Guard:
    """Return the guard of this process. Raises RuntimePatchError, see `required`."""
    return required().guard


def switched_on(patch: str) -> bool:
    """Say whether the patch of this id is in force. A model may outlive the session that it was made under."""
    return in_force is not None and patch in in_force.ids


def owners_asked() -> str:
    """Say, as `owners` of a dump, whether the leak ledger was asked who holds a page, and who asked for what."""
    return "checked" if switched_on("leak-ledger") else "not checked: ledger off"


def note_findings(patch: str, findings: list[dict[str, str]]) -> None:
    """Add what a probe found to its row of the guard manifest; an empty list says that it looked."""
    _note(patch, lambda row: row.update(findings=[*row.get("findings", ()), *findings]))


def note_path(patch: str, path: str) -> None:
    """Add a path that an optimisation took for the first time to its row of the guard manifest."""
    _note(patch, lambda row: row.update(paths=[*row.get("paths", ()), path]))


def note_decision(patch: str, text: str) -> None:
    """Say in its row of the guard manifest what an optimisation came to at the start."""
    _note(patch, lambda row: row.update(decision=text))


def note_injected(fault: str) -> None:
    """Say in its row of the guard manifest that a fault has acted."""
    _note(fault, lambda row: row.update(injected=True))


def note_end(how: str, why: str) -> None:
    """Say in the guard manifest how this process ends; the first to say so is believed."""
    if in_force is not None:
        in_force.note_end(how, why)


def _note(patch: str, write: Callable[[dict[str, Any]], None]) -> None:
    if in_force is not None:
        in_force.note(patch, write)
