"""Tables that are run: as dumped, as it should have been, as contain and clamp would leave it."""

from __future__ import annotations

import numpy as np

from gemma4_triage.replay.call import UNKNOWN, AttentionCall
from gemma4_triage.replay.damage import Kind, kinds

AS_DUMPED, INTENDED, CONTAIN, CLAMP = "as dumped", "intended", "contain", "clamp"
VARIANTS = (INTENDED, CONTAIN, CLAMP, AS_DUMPED)
"""In the order in which a backend runs them: what may kill its process comes last."""

_FIRST_PLACEHOLDER = 2**61


def is_placeholder(entries: np.ndarray) -> np.ndarray:
    """Entries that stand for a page that nobody knows: each for a page of its own, with values of its own."""
    return entries >= _FIRST_PLACEHOLDER


def tables(call: AttentionCall) -> dict[str, np.ndarray]:
    """Return each variant's entries, [rows, columns] int64; unknown ones are placeholders.

    contain: entries outside the buffer become the null page. clamp: they become the nearest entry inside, so the last
    page or page 0. A row that is longer than its table neither can mend.
    """
    found = kinds(call)
    outside = (found == Kind.OUT_OF_RANGE) | (found == Kind.NEGATIVE)
    as_dumped = np.where(call.ids == UNKNOWN, _placeholders(call, 0), call.ids)
    return {
        INTENDED: _intended(call, found),
        CONTAIN: np.where(outside, 0, as_dumped),
        CLAMP: np.where(outside, np.clip(as_dumped, 0, call.bound - 1), as_dumped),
        AS_DUMPED: as_dumped,
    }


def unknown_intentions(call: AttentionCall) -> int:
    """Entries that are read, and of which the dump does not say what they should have been."""
    return int((is_placeholder(tables(call)[INTENDED]) & call.read).sum())


def _intended(call: AttentionCall, found: np.ndarray) -> np.ndarray:
    right = call.ids
    if call.translated is not None:
        inside = (call.translated >= 0) & (call.translated < call.bound)
        right = np.where(inside & (found != Kind.NULL), call.translated, call.ids)
        unknown = (found != Kind.RIGHT) & ~(inside & (found != Kind.NULL))
    else:
        unknown = found != Kind.RIGHT
    return np.where(unknown | (right == UNKNOWN), _placeholders(call, 1), right)


def _placeholders(call: AttentionCall, which: int) -> np.ndarray:
    rows, columns = call.ids.shape
    own = np.arange(rows * columns, dtype=np.int64).reshape(rows, columns)
    return _FIRST_PLACEHOLDER + which * 2**40 + own
