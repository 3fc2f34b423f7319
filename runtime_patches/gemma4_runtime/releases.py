"""Releases of SGLang: which are known, which of them a server may run on, and which of two is the later one."""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError, version

BASE = "0.5.13.post1"
"""The release that the patches were written for."""

KNOWN = (BASE, "0.5.17", "0.5.23")
"""Releases that were looked at: each has a table of targets, and every patch says what it is in them."""

RUNNABLE = (BASE, "0.5.23")
"""Releases on which patches attach to a server today."""


def nearest_runnable(release: str) -> str:
    """Return the latest release up to this one on which patches attach; the first of them where none is older.

    Args:
        release: As PyPI names it, known or not.
    """
    return max((one for one in RUNNABLE if at_least(release, one)), key=order, default=RUNNABLE[0])


def installed_or_base() -> str:
    """Return the release that is installed, read from its metadata; BASE where there is none."""
    try:
        return version("sglang")
    except PackageNotFoundError:
        return BASE


def order(release: str) -> tuple[int, ...]:
    """Return a key that sorts releases by age: 0.5.9 before 0.5.13 before 0.5.13.post1 before 0.5.14."""
    return tuple(int(number) for number in re.findall(r"\d+", release))


def at_least(release: str, other: str) -> bool:
    """Say whether a release is the other one or a later one."""
    return order(release) >= order(other)
