"""Words that several packages write and read."""

from __future__ import annotations

from collections.abc import Iterable

DUMP_MARK = " [dump: "
"""How an error in a log begins to name the dump that tells of it."""

CONTAINED = "the step of this request was contained: "
"""How the error of a request begins that containment has ended."""

FEW_NAMES = 8


def names_near(typed: str, known: Iterable[str], all_shown: str = "", prefix: str = "", few: int = FEW_NAMES) -> str:
    """Return what to say of a name that nothing has: those near it, else all if they are few, else the first few.

    Args:
        typed: The name.
        known: The names that there are.
        all_shown: What shows all of them, as a clause; with it no first few are named.
        prefix: With which all begin, and which makes none like another.
        few: So many are all named, where none is near.
    """
    from difflib import get_close_matches

    names, word = list(known), typed.removeprefix(prefix).casefold()
    compared = {name.removeprefix(prefix).casefold(): name for name in names}
    like = [one for one in compared if word and word in one][:3] or get_close_matches(word, compared, 3, 0.6)
    near = [compared[one] for one in like]
    if not near and len(names) <= few:
        return f"there are {', '.join(names)}"
    shown = f"near it: {', '.join(near)}" if near else "" if all_shown else f"such as {', '.join(names[:FEW_NAMES])}, …"
    return "; ".join(part for part in (shown, all_shown) if part)


def number_of(number: int, one: str, many: str = "") -> str:
    """Return "1 dump" or "2 dumps"; many: where it is not `one` with an s, as in "entries hold" for "entry holds"."""
    return f"{number} {one if number == 1 else many or one + 's'}"
