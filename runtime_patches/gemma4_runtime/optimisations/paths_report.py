"""Shows in /server_info which paths the ops took."""

from __future__ import annotations

from typing import Any

from gemma4_runtime.fusion.paths import PATHS

KEY = "gemma4_triage_paths"
"""Of an internal state in /server_info."""


def after_internal_state(result: Any, scheduler: Any, *args: Any, **kwargs: Any) -> None:
    """Run after `Scheduler.get_internal_state`."""
    result.internal_state[KEY] = PATHS.document()
