"""Numbers in sentences."""

from __future__ import annotations


def number_of(number: int, one: str, many: str = "") -> str:
    """ "1 dump", "2 dumps"; many: where it is not `one` with an s, as in "entries hold" for "entry holds"."""
    return f"{number} {one if number == 1 else many or one + 's'}"
