"""Where the slots of a forward stand in a row that is wrong: whose they are, or from which token on they were put."""

from __future__ import annotations

from typing import Any

import numpy as np

from gemma4_runtime.release.requests import write_slots
from gemma4_runtime.rows.places import spans_of


def new_slots_of(made: Any, slot: int, row: Any) -> dict[str, Any]:
    """Return, for a dump, where a row has other slots of its forward than its own, or its own at another place.

    `new_slots_at` and `new_slots_belong`: its own stand in the row from the one token on, and belong from the other on.
    `new_slots_of` and `new_slots_apart`: where they belong stand those of this request slot, so many entries of the
    forward's list before its own, or behind them. Nothing where the forward's slots tell nothing.

    Args:
        made: The forward's batch, None between forwards.
        slot: The request slot whose row it is.
        row: All of the row, [columns].
    """
    if made is None or (spans := spans_of(made)) is None or (listed := write_slots(made)) is None:
        return {}
    slots = made.req_pool_indices.tolist()
    written, row = (one.cpu().numpy().astype(np.int64) for one in (listed, row))
    ends = np.cumsum([stop - start for start, stop in spans])
    if slot not in slots or len(slots) != len(spans) or written.size < ends[-1]:
        return {}
    at = slots.index(slot)
    start, stop = spans[at]
    first, count = int(ends[at]) - (stop - start), stop - start
    own, found = written[first : first + count], row[start:stop]
    if not count or found.size != count or np.array_equal(found, own):
        return {}
    # A slot is listed once, so that the first of a run tells where the run is.
    for column in np.flatnonzero(row == own[0]).tolist():
        if np.array_equal(row[column : column + count], own):
            return {"new_slots_at": column, "new_slots_belong": start, "new_slots": count}
    for place in np.flatnonzero(written[: ends[-1]] == found[0]).tolist():
        if np.array_equal(written[place : place + count], found):
            whose = slots[int(np.searchsorted(ends, place, side="right"))]
            return {"new_slots_of": whose, "new_slots_apart": place - first, "new_slots": count}
    return {}
