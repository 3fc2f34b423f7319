"""Releases of SGLang: which are known, which of them a server may run on, and which of two is the later one."""

from __future__ import annotations

import re
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version

BASE = "0.5.13.post1"
"""The release that the patches were written for."""

KNOWN = (BASE, "0.5.17", "0.5.23")
"""Releases that were looked at: each has a table of targets, and every patch says what it is in them."""

RUNNABLE = (BASE, "0.5.23")
"""Releases on which patches attach to a server today."""


HOW_TO_INSTALL = (
    f"in a clone, make setup installs SGLang {RUNNABLE[-1]}, and "
    f"pip install -c constraints.txt '.[runtime]' ./repro/toys installs {BASE}"
)


def nearest(release: str, among: Iterable[str] = KNOWN) -> str:
    """Return which of these releases is nearest to one by its numbers; the earlier where two are as near.

    Args:
        release: As PyPI names it, known or not.
        among: KNOWN, or RUNNABLE: a patch attaches to an unknown release, if at all, as to that one of them.
    """
    ordered = sorted(among, key=order)
    before = [one for one in ordered if at_least(release, one)]
    after = ordered[len(before) :]
    if not before or not after:
        return before[-1] if before else after[0]
    here, low, high = order(release), order(before[-1]), order(after[0])
    to_low, to_high = (tuple(a - b for a, b in zip(*pair, strict=True)) for pair in ((here, low), (high, here)))
    return after[0] if to_high < to_low else before[-1]


def installed_or_base() -> str:
    """Return the release that is installed, read from its metadata; BASE where there is none."""
    try:
        return version("sglang")
    except PackageNotFoundError:
        return BASE


def read_as() -> str:
    """Return the release in whose forms the installed one is read: its own, or the nearest one's that patches run on.

    A release that nobody has looked at is refused by name as soon as a patch is to attach, probes on request excepted.
    """
    installed = installed_or_base()
    return installed if installed in KNOWN else nearest(installed, RUNNABLE)


_RELEASE = re.compile(
    r"v?(\d{1,9}(?:\.\d{1,9}){0,3})(?:[._-]?(a|b|rc)(\d{0,9}))?(?:[._-]?(post)(\d{0,9}))?(?:[._-]?(dev)(\d{0,9}))?"
    r"(?:\+[a-z0-9.]+)?",
    re.IGNORECASE,
)
_STAGES = {"a": -3, "b": -2, "rc": -1}


def is_release(text: str) -> bool:
    """Return whether a text is a version as PyPI has them, such as 0.5.13.post1."""
    return _RELEASE.fullmatch(text.strip()) is not None


def order(release: str) -> tuple[int, ...]:
    """Return a key that sorts releases by age: 0.5.9, 0.5.13rc1, 0.5.13, 0.5.13.post1, 0.5.14; () for what is none.

    The same that `packaging` makes of versions with at most four numbers; it is a megabyte for this alone.
    """
    found = _RELEASE.fullmatch(release.strip())
    if found is None:
        return ()
    numbers, stage, stage_number, post, post_number, dev, dev_number = found.groups()
    key = [int(number) for number in numbers.split(".")]
    key += [0] * (4 - len(key))
    first = _STAGES[stage.lower()] if stage else -4 if dev and not post else 0
    return (
        *key,
        *(first, int(stage_number or 0)),
        *(1 + int(post_number or 0) if post else 0,),
        *(0 if dev else 1, int(dev_number or 0)),
    )


def at_least(release: str, other: str) -> bool:
    """Say whether a release is the other one or a later one."""
    return order(release) >= order(other)
