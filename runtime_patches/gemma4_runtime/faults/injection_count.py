"""Shows in /server_info how often each injected fault has acted."""

from __future__ import annotations

from typing import Any

from gemma4_runtime import current
from gemma4_runtime.catalog.faults import FAULTS
from gemma4_runtime.injections import document

KEY = "gemma4_triage_faults"
"""Of an internal state in /server_info."""


def after_internal_state(result: Any, scheduler: Any, *args: Any, **kwargs: Any) -> None:
    """Run after `Scheduler.get_internal_state`."""
    result.internal_state[KEY] = document(tuple(fault.id for fault in FAULTS if current.switched_on(fault.id)))
