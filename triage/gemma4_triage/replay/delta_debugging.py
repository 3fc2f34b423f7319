"""The smallest part of a list that fails (Zeller and Hildebrandt's ddmin)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TypeVar

T = TypeVar("T")


def smallest_failing(items: Sequence[T], fails: Callable[[list[T]], bool]) -> list[T]:
    """Return a part of `items`, in their order, that fails and of which none can be left out. All of them fail."""
    kept, parts = list(items), 2
    while len(kept) > 1:
        parts = min(parts, len(kept))
        chunks = _chunks(kept, parts)
        failing = next((chunk for chunk in chunks if fails(chunk)), None)
        if failing is not None:
            kept, parts = failing, 2
            continue
        rest = (
            next((rest for skip in range(parts) if fails(rest := _without(chunks, skip))), None) if parts > 2 else None
        )
        if rest is not None:
            kept, parts = rest, parts - 1
        elif parts == len(kept):
            break
        else:
            parts *= 2
    return kept


def smallest_failing_count(count: int, fails: Callable[[int], bool]) -> int:
    """Return a number from 1 to `count` that fails, while the number below it does not. `count` fails."""
    step = count // 2
    while step:
        if count - step >= 1 and fails(count - step):
            count -= step
        else:
            step //= 2
    return count


def _chunks(items: list[T], parts: int) -> list[list[T]]:
    edges = [len(items) * part // parts for part in range(parts + 1)]
    return [items[begin:end] for begin, end in pairwise(edges)]


def _without(chunks: list[list[T]], skip: int) -> list[T]:
    return [item for number, chunk in enumerate(chunks) if number != skip for item in chunk]
