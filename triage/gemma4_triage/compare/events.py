"""The events of two dumps, line by line; neither file is held in memory."""

from __future__ import annotations

from itertools import zip_longest

from gemma4_dumps.plain_json import plain
from gemma4_triage.compare.difference import ABSENT, EventsDifference, FieldDifference
from gemma4_triage.compare.fields import field_differences
from gemma4_triage.compare.side import Side


def compare_events(a: Side, b: Side) -> EventsDifference | None:
    """Return None if they are equal. Raises DumpUnreadable at the first damaged line."""
    counts, first = [0, 0], ()
    for number, events in enumerate(zip_longest(a.events(), b.events(), fillvalue=ABSENT)):
        counts = [count + (event is not ABSENT) for count, event in zip(counts, events, strict=True)]
        first = first or _differences(number, *events)
    return EventsDifference(counts[0], counts[1], first) if first else None


def _differences(number: int, a: object, b: object) -> tuple[FieldDifference, ...]:
    left, right = (event if event is ABSENT else plain(event) for event in (a, b))
    return tuple(field_differences(left, right, f"events.{number}"))
