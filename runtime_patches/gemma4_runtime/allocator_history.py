"""Probe `swa-allocator`, what its dumps tell of the past: the latest calls, and the state before the first of them.

A call is remembered by reference, as the leak ledger's event log does it; nothing is copied to the host before a dump
is written, and nothing waits for the device. The free lists are never changed in place, so the state is a reference to
them; the mapping is, so that each window begins with a copy of it on the device, 4 bytes per full slot.

Two windows are kept, the current one and the one before, of MAX_CALLS calls or about MAX_SLOTS slots each. What a call
named is kept whole, so a window may exceed MAX_SLOTS by one call. If the lists change outside the calls that the probe
sees (`clear`, HiCache on the inner allocators), the history begins anew.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from gemma4_dumps.allocator_calls import FIRST_CALL, NEED_SORT, START_LISTS, START_MAPPING, runs_of
from gemma4_dumps.draft import TensorPayload
from gemma4_runtime import current
from gemma4_runtime.checks.page_ledger import Site
from gemma4_runtime.leak.event_log import kept
from gemma4_runtime.leak.ledger import SITE, ledger_of
from gemma4_runtime.release.allocators import free_page_lists, in_free_group

MAX_CALLS = 256
MAX_SLOTS = 1 << 14

Lists = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


def free_lists(allocator: Any) -> Lists:
    """Return what is free in the full pool, then in the SWA pool, two lists each: page ids, [any]."""
    return (*free_page_lists(allocator.full_attn_allocator), *free_page_lists(allocator.swa_attn_allocator))


@dataclass
class Call:
    """One call of the allocator. told: plain values. lists: slots or pages by name, [any] each, kept by reference."""

    number: int
    told: dict[str, Any]
    lists: dict[str, torch.Tensor | tuple[torch.Tensor, ...]] = field(default_factory=dict)

    def tell(self, **lists: torch.Tensor | tuple[torch.Tensor, ...] | None) -> int:
        """Add slots that this call named or gave; None stays unsaid. Returns how many."""
        count = 0
        for name, value in lists.items():
            if value is not None:
                parts = value if isinstance(value, tuple) else (value,)
                whole = tuple(kept(part) for part in parts)
                self.lists[name] = whole if isinstance(value, tuple) else whole[0]
                count += sum(part.numel() for part in whole)
        return count


@dataclass
class _Window:
    """Calls from a known state on. mapping: int32 [full slots], as it was before the first call."""

    lists: Lists
    mapping: torch.Tensor
    calls: list[Call] = field(default_factory=list)
    slots: int = 0

    @property
    def full(self) -> bool:
        return len(self.calls) >= MAX_CALLS or self.slots >= MAX_SLOTS


class History:
    """The latest calls of one allocator. seen: how many there were since the state was last unknown."""

    def __init__(self) -> None:
        self.seen = 0
        self._windows: deque[_Window] = deque(maxlen=2)
        self._lists: Lists | None = None

    def begin(self, allocator: Any, name: str, told: Mapping[str, Any] | None = None, **lists: Any) -> None:
        """Note that `name` is called, before the allocator does anything. told, lists: see `Call`."""
        now = free_lists(allocator)
        if self._lists is None or any(was is not found for was, found in zip(self._lists, now, strict=True)):
            self._windows.clear()
            self.seen = 0
        if not self._windows or (self._windows[-1].full and not in_free_group(allocator)):
            # The last entry, of index -1, is no slot's.
            self._windows.append(_Window(now, allocator.full_to_swa_index_mapping[:-1].to(torch.int32, copy=True)))
        self._lists = now
        call = Call(self.seen, {"call": name, "returned": False, **(told or {}), "free_before": _available(allocator)})
        call.told |= _asked_by(allocator)
        self.seen += 1
        self._windows[-1].calls.append(call)
        self.tell(**lists)

    def tell(self, **lists: Any) -> None:
        """Add slots that the latest call named or gave."""
        window = self._windows[-1]
        window.slots += window.calls[-1].tell(**lists)

    def end(self, allocator: Any) -> None:
        """Note that the latest call has returned."""
        self._lists = free_lists(allocator)
        if self._windows:
            self._windows[-1].calls[-1].told |= {"returned": True, "free_after": _available(allocator)}

    def latest(self, name: str) -> Mapping[str, Any]:
        """Return the plain values of the latest call of this name; nothing if it is not remembered."""
        calls = (call for window in reversed(self._windows) for call in reversed(window.calls))
        return next((call.told for call in calls if call.told["call"] == name), {})

    def evidence(self, allocator: Any) -> dict[str, Any]:
        """Facts of a dump: scalars, tensors, events, dropped_events. Waits for the device."""
        if not self._windows:
            return {"scalars": {}, "tensors": {}, "events": (), "dropped_events": 0}
        calls = [call for window in self._windows for call in window.calls]
        start = self._windows[0]
        mapping = start.mapping.cpu().numpy().astype(np.int64)
        mapped = np.flatnonzero(mapping)
        tensors = {START_MAPPING: np.stack((mapped, mapping[mapped]), axis=1)}
        for name, pages in zip(START_LISTS, start.lists, strict=True):
            runs = [[*run, 1][:3] for run in runs_of(_on_host(pages))]
            tensors[name] = np.array(runs, np.int64).reshape(-1, 3)
        return {
            "scalars": {FIRST_CALL: calls[0].number, NEED_SORT: bool(allocator.need_sort)},
            "tensors": {name: TensorPayload.from_array(values) for name, values in tensors.items()},
            "events": tuple(map(_document, calls)),
            "dropped_events": self.seen - len(calls),
        }


def _available(allocator: Any) -> tuple[int, int]:
    """Free tokens of the full and the SWA pool; the host knows how long the lists are."""
    return int(allocator.full_available_size()), int(allocator.swa_available_size())


def _asked_by(allocator: Any) -> dict[str, Any]:
    """Who asked, and in which scheduler step: the leak ledger knows, where it is on."""
    if not _has_ledger():
        return {}
    site = SITE.get()
    return {"site": None if site is Site.UNKNOWN else site.name.lower(), "step": ledger_of(allocator).step}


def request_slots_of(allocator: Any, full: torch.Tensor) -> tuple[int | None, ...]:
    """Return whose the pages of full slots [n] were last, None for nobody's; nothing if the leak ledger is not on.

    Waits for the device.
    """
    if not _has_ledger():
        return ()
    ledger = ledger_of(allocator)
    ledger.log.drain()
    history = ledger.pools["full"]
    pages = np.clip(_on_host(full) // ledger.page_size, 0, history.pages)
    return tuple(owner if owner > 0 else None for owner in history.owner[pages].tolist())


def _has_ledger() -> bool:
    return current.switched_on("leak-ledger")


def _document(call: Call) -> dict[str, Any]:
    said: dict[str, Any] = {"number": call.number} | call.told
    for name, value in call.lists.items():
        if isinstance(value, tuple):
            said[name] = [runs_of(_on_host(part)) for part in value]
        else:
            said[name] = _on_host(value).tolist() if name.endswith(("_lens", "_loc")) else runs_of(_on_host(value))
    return said


def _on_host(values: torch.Tensor) -> np.ndarray:
    return values.to("cpu", torch.int64).reshape(-1).numpy()
