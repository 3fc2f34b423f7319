"""A plugin of coverage that writes what it has every two seconds: engines are killed, and write nothing then."""

from __future__ import annotations

import threading
from typing import Any

import coverage

_EVERY_S = 2.0


def coverage_init(registry: Any, options: Any) -> None:
    """Start the thread that saves; coverage calls it in every process, forked ones included."""
    threading.Thread(target=_save_for_ever, name="coverage-saves", daemon=True).start()


def _save_for_ever() -> None:
    stop = threading.Event()
    while not stop.wait(_EVERY_S):
        if (measured := coverage.Coverage.current()) is not None:
            measured.save()
