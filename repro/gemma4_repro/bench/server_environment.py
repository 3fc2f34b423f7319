"""The environment of an arm's server: the user's, without what would change the engine, and the arm's own."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from gemma4_repro.bench.arms import BenchArm
from gemma4_repro.engine.host_environment import hermetic_environment

# Caches of compiled kernels (TRITON_, FLASHINFER_WORKSPACE) are the user's to place.
_SCRUBBED = ("GEMMA4_", "SGLANG_", "SGL_", "FLASHINFER_LOG", "FLASHINFER_DUMP")
_QUIET = {"HF_HUB_OFFLINE": "1", "PYTHONUNBUFFERED": "1"}
_MEASURING = {"SGLANG_RECORD_STEP_TIME": "1", **_QUIET}


def clean_environment(inherited: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the user's, without settings of ours and of SGLang's."""
    return {name: value for name, value in inherited.items() if not name.startswith(_SCRUBBED)} | _QUIET


def server_environment(
    arm: BenchArm, folder: Path, host_engine: bool, inherited: Mapping[str, str] = os.environ
) -> dict[str, str]:
    """folder: the arm's. On the host engine every arm loads the plugin, which brings the engine's leaves and fixes."""
    mine = arm.environment_in(folder)
    if not host_engine:
        return clean_environment(inherited) | _MEASURING | mine
    mine.pop("SGLANG_PLUGINS", None)
    # Eager MTP does not run on SGLang as shipped, hence the fixes.
    leaves = {"CUDA_VISIBLE_DEVICES": "", "GEMMA4_TRIAGE_PATCHES": "default"}
    return hermetic_environment(inherited) | leaves | _MEASURING | mine
