"""Events of the pools, in order: tensors are kept where they are, and copied to the host many at a time.

A hook appends a few numbers; that is all that happens inside a scheduler step. A tensor that is a view (a row of
req_to_token, a slice of a free list) is cloned, because its base is written again or would be kept alive whole: one
small kernel. Any other tensor is kept by reference: SGLang makes new ones and never changes those that it handed out.
A tensor that several events name, as those of one allocation do, is kept and copied once.
When enough waits, one concatenation and one copy to pinned memory are started, and the events are folded into the
ledger in one go once that copy has ended: no synchronisation. Only an audit waits.

What waits is bounded: a copy starts at COPY_AT_EVENTS or COPY_AT_SLOTS, so device references and pinned memory hold at
most COPY_AT_SLOTS * 8 bytes each, and what the steps hand out and free while a copy is under way. The latest chunks
stay on the host, for the events that a dump holds.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from gemma4_runtime.checks.page_events import Events, Kind, Owners

COPY_AT_EVENTS = 1024
COPY_AT_SLOTS = 1 << 16
COPY_AT_SINGLE_SLOTS = 1 << 14
"""Of pages of one slot, each of which tells something of its own: a fold of more would hold up a step for long."""
_NONE = -1
# An enum's members are looked up by a Python function in 3.11, which a hook need not pay.
_OWNED, _PAIRED = int(Kind.OWNED), int(Kind.PAIRED)
_COLUMNS = 6


def _numbers() -> array[int]:
    return array("q")


@dataclass
class _Waiting:
    """Events that no copy has taken yet.

    Attributes:
        heads: _COLUMNS numbers per event, as in `Events`.
        lists: Their tensors.
        sizes: Slots of each.
        number_of: Number of a tensor in `lists`, by the identity of the tensor that the hook saw.
        views: Those that were cloned.
        slots: How many wait.
        owner_counts: As `Owners.counts`.
        requests: As in `Owners`.
        generations: As in `Owners`.
        lengths: As in `Owners`.
        latest_owners: The latest group.
    """

    heads: array[int] = field(default_factory=_numbers)
    lists: list[torch.Tensor] = field(default_factory=list)
    sizes: array[int] = field(default_factory=_numbers)
    number_of: dict[int, int] = field(default_factory=dict)
    views: list[torch.Tensor] = field(default_factory=list)
    slots: int = 0
    owner_counts: array[int] = field(default_factory=_numbers)
    requests: array[int] = field(default_factory=_numbers)
    generations: array[int] = field(default_factory=_numbers)
    lengths: array[int] = field(default_factory=_numbers)
    latest_owners: tuple[Sequence[int], ...] = ()

    def group(self, *owners: Sequence[int]) -> int:
        """Return the number of these owners' group, which a batch that decodes repeats at every step."""
        if owners != self.latest_owners:
            self.latest_owners = owners
            self.owner_counts.append(len(owners[0]))
            for column, values in zip((self.requests, self.generations, self.lengths), owners, strict=True):
                column.extend(values)
        return len(self.owner_counts) - 1

    def number(self, tensor: torch.Tensor) -> int:
        """Return the number of the list of slots that `tensor` holds."""
        found = self.number_of.get(id(tensor))
        if found is not None:
            return found
        number, count = len(self.lists), tensor.numel()
        self.lists.append(kept(tensor))
        if self.lists[-1] is not tensor:
            # Kept until the next pump, so that nothing else takes its identity.
            self.views.append(tensor)
        self.number_of[id(tensor)] = number
        self.sizes.append(count)
        self.slots += count
        return number

    def forget_views(self) -> None:
        """Forget views: what one shows may change by the next step, so that it is another list then."""
        for view in self.views:
            del self.number_of[id(view)]
        self.views.clear()

    def events(self, slots: np.ndarray, page_size: int) -> Events:
        owners = Owners(*map(_array, (self.owner_counts, self.requests, self.generations, self.lengths)))
        bounds = np.append(0, np.cumsum(_array(self.sizes)))
        kind, pool, site, step, first, second = _array(self.heads).reshape(-1, _COLUMNS).T
        return Events(kind, pool, site, step, first, second, slots, bounds, owners, page_size)


@dataclass
class _Copy:
    """Events whose slots are on their way to the host."""

    taken: _Waiting
    slots: torch.Tensor
    done: torch.cuda.Event | None
    source: torch.Tensor


class EventLog:
    """Collects events and hands them to `fold`, many at a time, with their slots on the host."""

    def __init__(self, fold: Callable[[Events], None], page_size: int) -> None:
        self.count = 0
        self._fold = fold
        self._page_size = page_size
        self._enough_slots = COPY_AT_SINGLE_SLOTS if page_size == 1 else COPY_AT_SLOTS
        self._waiting = _Waiting()
        self._copying: _Copy | None = None

    def add(
        self,
        kind: int,
        pool: int,
        site: int,
        step: int,
        slots: torch.Tensor | None,
        by: tuple[int, int] | None = None,
    ) -> None:
        """Add an event.

        Args:
            kind: A `Kind` but OWNED and PAIRED.
            pool: Number of the pool.
            site: Who asked.
            step: The scheduler's.
            slots: [n] of `pool`, None for CLEARED.
            by: Request slot and generation of who gives them back, where that is known, or takes them from the cache.
        """
        waiting = self._waiting
        number = _NONE if slots is None else waiting.number(slots)
        group = _NONE if by is None else waiting.group((by[0],), (by[1],), (0,))
        waiting.heads.extend((kind, pool, site, step, number, group))
        self.count += 1

    def add_paired(self, site: int, step: int, full: torch.Tensor, swa: torch.Tensor) -> None:
        """full, swa: [n] slots each, of the pools FULL and SWA."""
        waiting = self._waiting
        waiting.heads.extend((_PAIRED, 0, site, step, waiting.number(full), waiting.number(swa)))
        self.count += 1

    def add_owned(
        self,
        site: int,
        step: int,
        slots: torch.Tensor,
        requests: Sequence[int],
        generations: Sequence[int],
        lengths: Sequence[int],
    ) -> None:
        """slots: [sum of lengths] of the pool FULL, request after request."""
        waiting = self._waiting
        group = waiting.group(requests, generations, lengths)
        waiting.heads.extend((_OWNED, 0, site, step, waiting.number(slots), group))
        self.count += 1

    def pump(self) -> None:
        """Fold what has arrived on the host and start the next copy if enough waits. Never waits for the device."""
        waiting = self._waiting
        if waiting.views:
            waiting.forget_views()
        if self._copying is not None and (self._copying.done is None or self._copying.done.query()):
            self._finish()
        enough = len(waiting.heads) >= COPY_AT_EVENTS * _COLUMNS or waiting.slots >= self._enough_slots
        if enough and self._copying is None:
            self._start()

    def drain(self) -> None:
        """Fold everything; waits for the device."""
        while self._copying is not None or self._waiting.heads:
            if self._copying is None:
                self._start()
            self._finish()

    def _start(self) -> None:
        taken, self._waiting = self._waiting, _Waiting()
        lists = [tensor if tensor.dim() == 1 else tensor.reshape(-1) for tensor in taken.lists]
        source = torch.cat(lists) if lists else torch.empty(0, dtype=torch.int64)
        done, slots = None, source
        if source.is_cuda:
            slots = torch.empty(source.shape, dtype=source.dtype, pin_memory=True)
            slots.copy_(source, non_blocking=True)
            done = torch.cuda.Event()
            done.record()
        taken.lists.clear()
        self._copying = _Copy(taken, slots, done, source)

    def _finish(self) -> None:
        assert self._copying is not None
        copy, self._copying = self._copying, None
        if copy.done is not None:
            copy.done.synchronize()
        self._fold(copy.taken.events(copy.slots.numpy().astype(np.int64, copy=False), self._page_size))


def kept(tensor: torch.Tensor) -> torch.Tensor:
    """Say what remembers the values that `tensor` has now: a clone of a view, any other tensor itself."""
    whole = tensor.untyped_storage().nbytes() == tensor.numel() * tensor.itemsize
    return tensor if whole else tensor.clone()


def _array(numbers: array[int]) -> np.ndarray:
    return np.frombuffer(numbers, np.int64) if numbers else np.empty(0, np.int64)
