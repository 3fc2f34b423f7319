"""A start whose pools no probe can follow is refused: what it said of them would be wrong."""

from __future__ import annotations

from typing import Any

from gemma4_runtime.errors import SettingsError
from gemma4_runtime.release.arguments import settled


def refuse_others(server_args: Any, **_unknown: Any) -> None:
    """Run before `check_server_args`.

    Raises:
        SettingsError: Both pools are parts of one memory (--enable-unified-memory), where a slot's number is not its
            place and there is no map from one pool to the other.
    """
    if getattr(settled(server_args), "enable_unified_memory", False):
        raise SettingsError(
            "--enable-unified-memory makes one memory of both pools, whose slots the probes cannot follow: serve "
            "without it, or with --debug 0 (SGLANG_TRTLLM_MHA_DEBUG=0 and GEMMA4_TRIAGE_LEAK=0)"
        )
