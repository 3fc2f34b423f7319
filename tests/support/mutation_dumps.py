"""The dumps that mutations of the live engine left, a folder each, and what is named first of them."""

from collections.abc import Sequence
from pathlib import Path

from gemma4_dumps.reader import Dump, read_dump
from gemma4_triage.diagnose.conclude import conclude
from gemma4_triage.diagnose.grouping import group
from gemma4_triage.finding import Finding

KEPT = Path(__file__).parents[1] / "data" / "mutation_dumps"
COLUMNS = (
    *("page", "pool", "fault", "places", "owner_slot", "owner_generation"),
    *("alloc_site", "alloc_step", "free_site", "free_step", "peer", "last_event"),
)
"""Of an audit's suspects."""


def dumps_of(name: str) -> list[Dump]:
    """Return the dumps of one folder, in the order of their names."""
    return [read_dump(path) for path in sorted((KEPT / name).iterdir())]


def named_of(*dumps: Dump) -> Sequence[Finding]:
    """Return what is named of dumps that are one incident, the first cause first."""
    (incident,) = group(dumps)
    return conclude(incident)
