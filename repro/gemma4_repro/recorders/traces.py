"""What of an arm's files is removed after the verdict, unless a user asks to keep it."""

from __future__ import annotations

from pathlib import Path

from gemma4_repro.engine.arm_request import PHASE_NAME, REQUEST_NAME
from gemma4_repro.engine.run_folder import writing
from gemma4_repro.recorders.catalog import RECORDERS

TRACES = (REQUEST_NAME, PHASE_NAME, *(name for kind in RECORDERS.values() for name in kind.traces))
"""The request with its prompts, how far the arm came, and what the recorders say are traces of theirs."""


def remove_traces(folder: Path, arms: tuple[str, ...]) -> None:
    """Remove TRACES of these arms.

    Args:
        folder: The run's; each arm has a folder of its own in it.
        arms: Their names.

    Raises:
        OutputUnwritable: The system does not let one be removed.
    """
    with writing(folder):
        for arm in arms:
            for name in TRACES:
                (folder / arm / name).unlink(missing_ok=True)
