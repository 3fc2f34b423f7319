"""How much of each thing a report holds. Together they keep an HTML file of the largest input below a few MB."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

from gemma4_dumps.wording import number_of
from gemma4_triage.report.model.records import Pair

T = TypeVar("T")

MAX_INCIDENTS = 40
MAX_DUMPS = 20
"""Of one incident, the oldest first."""
MAX_PICTURES = 3
"""Page tables and ledgers of one incident: its first dumps are the cause, later ones its consequences."""
MAX_ALL_PICTURES = 40
MAX_EVIDENCE = 16
MAX_ENTRIES = 24
MAX_ROWS = 24
MAX_COLUMNS = 40
MAX_SUSPECTS = 40
MAX_BARS = 12
MAX_EVENTS = 20_000
MAX_MARKS = 120
"""Of one lane."""
MAX_ARMS = 200
MAX_PROBES = 24
MAX_LOGS = 12
MAX_RANKS = 4
MAX_POINTS = 240
MAX_LINES = 60


def first(items: Sequence[T], limit: int, one: str, rest: str = "") -> tuple[tuple[T, ...], tuple[str, ...]]:
    """Return the first `limit` of them, and a line about the others if there are any. one: what one is called."""
    left = len(items) - limit
    return tuple(items[:limit]), ((number_of(left, f"more {one}") + rest,) if left > 0 else ())


def pairs_of(found: Iterable[tuple[str, object]]) -> tuple[Pair, ...]:
    """Return the first MAX_LINES; a last pair says how many more there are."""
    items = list(found)
    pairs = [Pair(name=name, value=str(value)) for name, value in items[:MAX_LINES]]
    left = len(items) - len(pairs)
    return (*pairs, *((Pair(name="left out", value=f"{left} more"),) if left else ()))
