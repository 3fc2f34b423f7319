"""In which way a number is wrong, told from what it should have been and from what else there is at that moment."""

from __future__ import annotations

from collections.abc import Collection

from gemma4_dumps.structures import Defect


def defect_of(
    value: int,
    expected: int | None,
    end: int,
    own: Collection[int] = (),
    foreign: Collection[int] = (),
    free: Collection[int] = (),
    twin: int | None = None,
) -> Defect | None:
    """Return the first way that fits, from what leaves no doubt to what others may share; None if none does.

    None, too, of a value one beside the right one that somebody else has: whether it is his is not told by the number.
    That nobody has it says nothing: most of a pool may be free.

    Args:
        value: What stands there.
        expected: What should; None if that is not known.
        end: The first value that is past the end.
        own: What else the same owner has.
        foreign: What others have.
        free: What nobody has.
        twin: What `expected` is in the other pool; None without one.
    """
    if value < 0:
        return Defect.NEGATIVE
    if value == 0:
        return Defect.ZERO
    if value >= end:
        return Defect.PAST_END
    if expected is not None and abs(value - expected) == 1:
        return None if value not in own and value in (*foreign, twin) else Defect.OFF_BY_ONE
    if twin is not None and value == twin:
        return Defect.OTHER_SPACE
    for values, defect in ((own, Defect.DUPLICATE), (foreign, Defect.FOREIGN), (free, Defect.STALE)):
        if value in values:
            return defect
    return None
