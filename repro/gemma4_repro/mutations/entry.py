"""One entry of a live structure, as a mutation meets it: what it is, whose, and what it can be corrupted to. Pure.

Values are in the structure's own unit: a page id, a slot, a number of tokens, a row, a layer.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gemma4_dumps.structures import Defect


@dataclass(frozen=True)
class Entry:
    """An entry that can be changed.

    Attributes:
        where: Says which entry it is, for the ground truth.
        value: Is right.
        write: Puts another value there.
        read: Tells what is there now; None if the entry is gone.
        upper: The first value beyond what the structure's target has.
        prompt: The number of the prompt that it belongs to; None for one that no request holds.
        row: Its request's row of req_to_token, by the request's own account.
        own: What other entries of the same owner hold.
        foreign: What entries of other owners hold.
        stale: What was right once.
        other_space: What the other pool has for it.
        drop: Takes the entry away; None where that is no cell.
        taken: What SGLang takes a value for: two that it takes for the same are no two states.
    """

    where: str
    value: int
    write: Callable[[int], None]
    read: Callable[[], int | None]
    upper: int
    prompt: int | None = None
    row: int | None = None
    own: Sequence[int] = ()
    foreign: Sequence[int] = ()
    stale: Sequence[int] = ()
    other_space: Sequence[int] = ()
    drop: Callable[[], None] | None = None
    taken: Callable[[int], int] = int


@dataclass(frozen=True)
class Change:
    """What was done. after: None for an entry that was taken away."""

    entry: Entry
    after: int | None
    partner: Entry | None = None

    @property
    def is_none_to_sglang(self) -> bool:
        """Whether SGLang takes the value that is there now for another one, which was right."""
        entry, after = self.entry, self.after
        # A call that is made once more names the same page.
        if self.partner is not None or after is None or after == entry.value:
            return False
        return entry.taken(after) == entry.taken(entry.value)


def corrupt(defect: Defect, entries: Sequence[Entry], chance: random.Random) -> Change | None:
    """Corrupt one of the entries, or two that are exchanged; None if none of them can be wrong in this way.

    Args:
        defect: Says in which way.
        entries: The live ones, of which `chance` chooses.
        chance: Makes every choice, so that the same state and seed give the same change.
    """
    for entry in chance.sample(list(entries), len(entries)):
        change = _change(defect, entry, entries, chance)
        if change is not None:
            return change
    return None


def _change(defect: Defect, entry: Entry, entries: Sequence[Entry], chance: random.Random) -> Change | None:
    if defect is Defect.LOST:
        if entry.drop is None:
            return None
        entry.drop()
        return Change(entry, None)
    if defect is Defect.SWAPPED:
        partners = [other for other in entries if other.value != entry.value]
        if not partners:
            return None
        partner = chance.choice(partners)
        entry.write(partner.value)
        partner.write(entry.value)
        return Change(entry, partner.value, partner)
    values = sorted({value for value in _values(defect, entry) if value != entry.value})
    if not values:
        return None
    value = chance.choice(values)
    entry.write(value)
    return Change(entry, value)


def _values(defect: Defect, entry: Entry) -> Sequence[int]:
    match defect:
        case Defect.OFF_BY_ONE:
            # One that leaves the range is another defect's cell.
            return [value for value in (entry.value - 1, entry.value + 1) if 0 < value < entry.upper]
        case Defect.ZERO:
            return [0]
        case Defect.NEGATIVE:
            return [-1]
        case Defect.PAST_END:
            return [entry.upper, entry.upper + 7]
        case Defect.DUPLICATE:
            return entry.own
        case Defect.FOREIGN:
            return [value for value in entry.foreign if value not in entry.own]
        case Defect.STALE:
            return [value for value in entry.stale if value not in entry.own and value not in entry.foreign]
        case Defect.OTHER_SPACE:
            return entry.other_space
        case _:
            return []
