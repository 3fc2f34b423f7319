"""Words that several packages write and read."""

from __future__ import annotations

DUMP_MARK = " [dump: "
"""How an error in a log begins to name the dump that tells of it."""


def number_of(number: int, one: str, many: str = "") -> str:
    """Return "1 dump" or "2 dumps"; many: where it is not `one` with an s, as in "entries hold" for "entry holds"."""
    return f"{number} {one if number == 1 else many or one + 's'}"
