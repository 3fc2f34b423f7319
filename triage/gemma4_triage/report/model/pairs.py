"""Names and values as a list of bounded length."""

from __future__ import annotations

from collections.abc import Iterable

from gemma4_triage.report.model.limits import MAX_LINES
from gemma4_triage.report.model.records import Pair


def pairs_of(found: Iterable[tuple[str, object]]) -> tuple[Pair, ...]:
    """Return the first MAX_LINES; a last pair says how many more there are."""
    items = list(found)
    pairs = [Pair(name=name, value=str(value)) for name, value in items[:MAX_LINES]]
    left = len(items) - len(pairs)
    return (*pairs, *((Pair(name="left out", value=f"{left} more"),) if left else ()))
