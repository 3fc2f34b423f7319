"""Reads what a dump's events say of the allocator's calls: slots, whose each is, and what was given back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any


def gives_back(call: Mapping[str, Any]) -> bool:
    """Return whether a call is one that frees."""
    return str(call.get("call")).startswith("free")


def is_release(past: Sequence[Mapping[str, Any]], number: int) -> bool:
    """Return whether a whole request was released by a call, or by one of the group that it ends.

    That one had ended, and a batch that goes on with it may be the fault.
    """
    named = set(slots_of(past[number].get("full")))
    while number >= 0 and gives_back(past[number]) and named & set(slots_of(past[number].get("full"))):
        if past[number].get("site") == "release_kv_cache":
            return True
        number -= 1
    return False


def request_at(call: Mapping[str, Any], row: int) -> int | None:
    """Return which request of a call the slot at `row` is of; None if the event does not say."""
    return next((at for at, start, end in spans(call) if start <= row < end), None)


def spans(call: Mapping[str, Any]) -> Iterator[tuple[int, int, int]]:
    """Yield each request of a call with its first row and the one behind its last."""
    ends, begins = call.get("seq_lens"), call.get("prefix_lens")
    if not isinstance(ends, list):
        return
    counts = [1] * len(ends)
    if isinstance(begins, list):
        counts = [max(int(end) - int(begin), 0) for end, begin in zip(ends, begins, strict=False)]
    row = 0
    for at, count in enumerate(counts):
        yield at, row, row + count
        row += count


def swa_peer(call: Mapping[str, Any], slot: int) -> int | None:
    """Return the SWA slot that a call gave a full slot; None if it is not among the call's."""
    full, swa = (slots_of(call.get(name)) for name in ("full", "swa"))
    return dict(zip(full, swa, strict=False)).get(slot)


def slots_of(runs: Any) -> list[int]:
    """Return the slots of runs: [first, how many] each, or [slot, how many times, 0]."""
    lists = [run for run in runs if isinstance(run, list) and len(run) in (2, 3)] if isinstance(runs, list) else []
    return [
        run[0] + more * (len(run) == 2)
        for run in lists
        if isinstance(run[0], int)
        for more in range(min(int(run[1]), 1 << 16))
    ]
