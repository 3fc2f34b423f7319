"""Steps of MTP that leave the draft out where it costs more than it brings: what their policy hears and tells."""

from __future__ import annotations

from typing import Any

KEY = "gemma4_triage_drafts"
"""Of an internal state in /server_info."""


def after_process_decode(_: None, processor: Any, batch: Any, result: Any, **_unknown: Any) -> None:
    """Tells the worker what a verification accepted: after `process_batch_result_decode`, which has counted it."""
    worker = processor.model_worker
    if batch.is_spec_v2 and (hear := getattr(worker, "hear_of", None)) is not None:
        hear(result)


def after_internal_state(result: Any, scheduler: Any, *args: Any, **kwargs: Any) -> None:
    """Adds the policy's state after `Scheduler.get_internal_state`; nothing where the server does not draft."""
    tell = getattr(scheduler.model_worker, "draft_state", None)
    if tell is not None:
        result.internal_state[KEY] = tell()
