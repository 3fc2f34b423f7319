"""How often each fault acted in this process. One that was asked for and never acted proves nothing."""

from __future__ import annotations

import logging
from collections import Counter
from typing import Any

from gemma4_runtime import current
from gemma4_runtime.catalog.faults import FAULTS

logger = logging.getLogger(__name__)

KEY = "gemma4_triage_faults"
"""Of an internal state in /server_info."""

_counts: Counter[str] = Counter()


def injected(fault: str) -> None:
    """Count one injection of the fault of this id. The first one is written to the guard manifest."""
    _counts[fault] += 1
    if _counts[fault] == 1:
        logger.warning("gemma4-triage: the fault %s has acted for the first time", fault)
        current.note_injected(fault)


def document(faults: tuple[str, ...]) -> dict[str, int]:
    """Return the injections of each of these faults, 0 for one that has not acted."""
    return {fault: _counts[fault] for fault in faults}


def after_internal_state(result: Any, scheduler: Any, *args: Any, **kwargs: Any) -> None:
    """Run after `Scheduler.get_internal_state`: show in /server_info how often each injected fault has acted."""
    result.internal_state[KEY] = document(tuple(fault.id for fault in FAULTS if current.switched_on(fault.id)))
