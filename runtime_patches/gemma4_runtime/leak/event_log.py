"""Events of the pools, in order: tensors are kept where they are, and copied to the host many at a time.

A hook appends an entry; that is all that happens inside a scheduler step. A tensor that is a view (a row of
req_to_token, a slice of a free list) is cloned, because its base is written again or would be kept alive whole: one
small kernel. Any other tensor is kept by reference: SGLang makes new ones and never changes those that it handed out.
When enough entries wait, one concatenation and one copy to pinned memory are started, and the entries are folded into
the ledger once that copy has ended: no synchronisation. Only an audit waits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

import numpy as np
import torch

COPY_AT = 256


class Kind(Enum):
    HANDED_OUT = auto()
    OWNED = auto()
    PAIRED = auto()
    FREE_ASKED = auto()
    FREED = auto()
    CLEARED = auto()


@dataclass(frozen=True, slots=True)
class Entry:
    """slots: [n] of pool, None for CLEARED. about: see `LeakLedger`; for PAIRED it is a tensor of SWA slots, [n]."""

    kind: Kind
    pool: str
    site: int
    step: int
    slots: torch.Tensor | None = None
    about: Any = None


@dataclass
class _Copy:
    """Entries whose tensors are on their way to the host. values: all of them, one after the other, int64."""

    entries: list[Entry]
    values: torch.Tensor
    done: torch.cuda.Event | None
    source: torch.Tensor


class EventLog:
    """Collects entries and hands them to `fold(entry, slots, about)`, tensors turned into host arrays."""

    def __init__(self, fold: Callable[[Entry, np.ndarray | None, Any], None]) -> None:
        self.count = 0
        self._fold = fold
        self._waiting: list[Entry] = []
        self._copying: _Copy | None = None
        self._kept: tuple[torch.Tensor, torch.Tensor] | None = None

    def keep(self, tensor: torch.Tensor) -> torch.Tensor:
        """`tensor` itself if nothing can change it, else a clone; the same clone for the same tensor twice in a row."""
        if tensor.untyped_storage().nbytes() == tensor.numel() * tensor.itemsize:
            return tensor
        if self._kept is None or self._kept[0] is not tensor:
            self._kept = tensor, tensor.clone()
        return self._kept[1]

    def add(self, entry: Entry) -> None:
        self.count += 1
        self._waiting.append(entry)

    def pump(self) -> None:
        """Fold what has arrived on the host and start the next copy if enough waits. Never waits for the device."""
        if self._copying is not None and (self._copying.done is None or self._copying.done.query()):
            self._finish()
        if self._copying is None and len(self._waiting) >= COPY_AT:
            self._start()

    def drain(self) -> None:
        """Fold everything; waits for the device."""
        while self._copying is not None or self._waiting:
            if self._copying is None:
                self._start()
            self._finish()

    def _start(self) -> None:
        entries, self._waiting, self._kept = self._waiting, [], None
        tensors = [t.reshape(-1).to(torch.int64) for entry in entries for t in _tensors(entry)]
        source = torch.cat(tensors) if tensors else torch.empty(0, dtype=torch.int64)
        done = None
        values = source
        if source.is_cuda:
            values = torch.empty(source.shape, dtype=torch.int64, pin_memory=True)
            values.copy_(source, non_blocking=True)
            done = torch.cuda.Event()
            done.record()
        self._copying = _Copy(entries, values, done, source)

    def _finish(self) -> None:
        assert self._copying is not None
        copy, self._copying = self._copying, None
        if copy.done is not None:
            copy.done.synchronize()
        values, at = copy.values.numpy(), 0
        for entry in copy.entries:
            arrays = []
            for tensor in _tensors(entry):
                arrays.append(values[at : at + tensor.numel()])
                at += tensor.numel()
            slots = arrays[0] if arrays else None
            self._fold(entry, slots, arrays[1] if len(arrays) > 1 else entry.about)


def _tensors(entry: Entry) -> list[torch.Tensor]:
    return [t for t in (entry.slots, entry.about) if isinstance(t, torch.Tensor)]
