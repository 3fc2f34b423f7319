"""What a server decided about its KV pools at its start: in its log, in the guard manifest, in /server_info."""

from __future__ import annotations

import logging
from typing import Any

from gemma4_runtime import current

logger = logging.getLogger(__name__)

KEY = "gemma4_triage_pools"
"""Of an internal state in /server_info."""

_decisions: dict[str, str] = {}


def decide(patch: str, text: str) -> None:
    """Record what the patch of this id came to in this process."""
    _decisions[patch] = text
    logger.info("gemma4-triage: %s: %s", patch, text)
    current.note_decision(patch, text)


def draft_reason(runner: Any) -> str | None:
    """Say why more tokens might not fit; None if they do.

    A draft with KV of its own gets as many tokens as its target, from memory that SGLang leaves out of the bytes of a
    token. MTP's frozen draft reads the target's KV.
    """
    kind = runner.spec_algorithm
    if kind.is_none() or kind.is_frozen_kv_mtp() or kind.is_ngram():
        return None
    return "a draft with KV of its own, whose bytes SGLang does not count in a token's"


def after_internal_state(result: Any, scheduler: Any, *args: Any, **kwargs: Any) -> None:
    """Run after `Scheduler.get_internal_state`."""
    result.internal_state[KEY] = dict(_decisions)
