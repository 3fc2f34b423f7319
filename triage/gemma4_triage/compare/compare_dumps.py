"""Two dumps, whole: their manifests, their tensors and their events."""

from __future__ import annotations

from itertools import zip_longest

from gemma4_dumps.plain_json import plain
from gemma4_triage.compare.difference import ABSENT, Comparison, EventsDifference, FieldDifference
from gemma4_triage.compare.fields import field_differences
from gemma4_triage.compare.sections import VOLATILE, manifest_differences
from gemma4_triage.compare.side import Side
from gemma4_triage.compare.tensors import compare_tensors


def compare_dumps(a: Side, b: Side, rows: int) -> Comparison:
    """Compare two dumps.

    Args:
        a: One of them.
        b: The other.
        rows: How many differing entries of each tensor to list; all are counted.

    Raises:
        DumpError: one of them cannot be read.
    """
    manifests = manifest_differences(a.dump.manifest, b.dump.manifest)
    volatile = manifests.pop(VOLATILE, ())
    return Comparison(
        sections=manifests,
        tensors=compare_tensors(a, b, rows),
        tensor_count=len(a.dump.manifest.tensors.keys() | b.dump.manifest.tensors.keys()),
        events=compare_events(a, b),
        volatile=volatile,
    )


def compare_events(a: Side, b: Side) -> EventsDifference | None:
    """Compare the events of two dumps line by line; None if they are equal. Neither file is held in memory.

    Raises:
        DumpUnreadable: at the first damaged line.
    """
    counts, first = [0, 0], ()
    for number, events in enumerate(zip_longest(a.events(), b.events(), fillvalue=ABSENT)):
        counts = [count + (event is not ABSENT) for count, event in zip(counts, events, strict=True)]
        first = first or _differences(number, *events)
    return EventsDifference(counts[0], counts[1], first) if first else None


def _differences(number: int, a: object, b: object) -> tuple[FieldDifference, ...]:
    left, right = (event if event is ABSENT else plain(event) for event in (a, b))
    return tuple(field_differences(left, right, f"events.{number}"))
