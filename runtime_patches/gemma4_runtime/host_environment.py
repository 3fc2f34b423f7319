"""What the host engine needs in the environment before Python starts: libraries read these at import."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from gemma4_runtime.releases import BASE, installed_or_base

NEEDED: Mapping[str, str] = {"SGLANG_USE_CPU_ENGINE": "1", "TRITON_INTERPRET": "1"}
STAND_INS = Path(__file__).parent / "host" / "stand_ins"
"""Packages ahead of the installed ones, for releases that import them before any plugin is asked."""
_PATH = "PYTHONPATH"


def with_stand_ins(inherited: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Returns the module path that the installed release needs; empty for one that needs none.

    Args:
        inherited: The environment in which it is to be put ahead of what is there.
    """
    if installed_or_base() == BASE:
        return {}
    before = [part for part in inherited.get(_PATH, "").split(os.pathsep) if part and part != str(STAND_INS)]
    return {_PATH: os.pathsep.join([str(STAND_INS), *before])}


def missing_from_environment() -> list[str]:
    """Returns `NAME=value` for each variable that is not set as the host engine needs it."""
    wanted = {**NEEDED, **with_stand_ins()}
    return [f"{name}={value}" for name, value in wanted.items() if os.environ.get(name) != value]
