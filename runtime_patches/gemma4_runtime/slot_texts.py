"""Which token the target's last forward stored in each slot of the full pool, and at which place of its request's text.

Pages, rows and links of the prefix cache may all be right, and a prefix still be that of another text.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gemma4_runtime.by_identity import ByIdentity

NEVER, UNKNOWN = -1, -2


class SlotTexts:
    """What forwards of the target have stored in each slot of the full pool, by the tokens that they read.

    Attributes:
        tokens: int64 [slots]: the token; NEVER where no forward stored one, UNKNOWN where it stands for something else.
        places: int64 [slots]: which token of its request's that was.
        stays: int64 [slots]: in which request's stay; 0 is none.
    """

    def __init__(self, slots: int) -> None:
        self.tokens = np.full(slots, NEVER, np.int64)
        self.places = np.full(slots, NEVER, np.int64)
        self.stays = np.zeros(slots, np.int64)
        self._of_slots: dict[int, tuple[tuple[Any, ...], int]] = {}
        self._count = 0

    def begin_stay(self, slot: int | None, stay: tuple[Any, ...]) -> int:
        """Return the number of a request's stay in a request slot, a new one where another was there; 0 without one."""
        if slot is None:
            return 0
        known = self._of_slots.get(slot)
        if known is None or known[0] != stay:
            self._count += 1
            known = self._of_slots[slot] = (stay, self._count)
        return known[1]

    def stay_in(self, slot: int) -> int:
        """Return the number of the latest stay in a request slot; 0 if there was none."""
        return self._of_slots.get(slot, ((), 0))[1]

    def of(self, slots: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return tokens, places and stays of slots, [n] each; UNKNOWN of those that the pool does not have."""
        inside = (slots >= 0) & (slots < self.tokens.size)
        at = np.where(inside, slots, 0)
        return np.where(inside, self.tokens[at], UNKNOWN), self.places[at], self.stays[at]

    def unlike(self, slots: np.ndarray, key: np.ndarray, begins: int) -> int:
        """Return of how many tokens of a key, [n], another was stored in its slot, of [n], for the same place.

        Args:
            slots: Of the full pool, one for each token.
            key: The tokens.
            begins: The place of the first of them in its text.
        """
        count = min(slots.size, key.size)
        tokens, places, _ = self.of(slots[:count])
        there = (tokens >= 0) & (places == begins + np.arange(count))
        return int((there & (tokens != key[:count])).sum())


_TEXTS: ByIdentity[SlotTexts] = ByIdentity()


def texts_of(allocator: Any) -> SlotTexts | None:
    """Return what is known of the slots of `allocator`, the one that the scheduler holds; None where nothing is."""
    return _TEXTS.get(allocator)


def texts_for(allocator: Any) -> SlotTexts:
    """Return the same, from now on; anew where the pool has grown."""
    inner = getattr(allocator, "full_attn_allocator", allocator)
    slots = int(inner.size) + int(allocator.page_size)
    known = _TEXTS.get(allocator)
    return known if known is not None and known.tokens.size >= slots else _TEXTS.put(allocator, SlotTexts(slots))
