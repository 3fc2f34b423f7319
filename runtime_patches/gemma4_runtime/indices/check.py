"""Check a build with the page_guard kernel: at once where the mode traps, else when the step synchronises anyway.

| mode    | the kernel             | the host reads its result                                           |
|---------|------------------------|---------------------------------------------------------------------|
| trap    | checks                 | now, a synchronisation, and raises before any attention kernel runs |
| contain | checks and neutralises | when SGLang next decides which requests finish, after its own wait  |
| log     | checks                 | as contain                                                          |

Ids of another pool than their buffer's are found without the device, whatever their values.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from gemma4_kernels.page_guard.launch import GuardedSlots, GuardedTable, NullPage, Padding, PageGuard, decode
from gemma4_runtime.indices.build import Build, IndexArray
from gemma4_runtime.indices.report import report_findings, report_wrong_space
from gemma4_runtime.session import Session
from gemma4_runtime.settings import Mode
from gemma4_runtime.steps import defer

logger = logging.getLogger(__name__)
# With overlap a step is launched before the one before it is read.
_STEPS_IN_FLIGHT = 2


class Checker:
    """A prepared check of one build, launched once for an eager build and once per replay for a graph's static arrays.

    Results travel in pinned buffers, one for each step in flight.
    """

    def __init__(self, build: Build) -> None:
        self.build = build
        self.wrong_uses = build.wrong_uses()
        arrays = [array for array in build.arrays if build.bound_of(array.name) > 0]
        self.names = tuple(array.name for array in arrays)
        self._slots: list[_Slot] = []
        if not arrays:
            return
        self._prepared = PageGuard(build.rows, build.request_slots.device).prepare(
            [_guarded(build, array) for array in arrays],
            build.cache_seqlens,
            build.page_size,
            contain=Session.guard().mode.at(build.in_graph) is Mode.CONTAIN,
            # Padded rows (graph buckets, DP padding, warm-up) carry request slot 0, which ReqToTokenPool never hands
            # out; their pages are the null page by design.
            padding=Padding(build.request_slots, 0),
        )

    def launch(self) -> _Slot | None:
        """Launch the check on the current stream; no synchronisation. None: no array of the build is followed."""
        if not self.names:
            return None
        slot = next((slot for slot in self._slots if not slot.busy), None)
        if slot is None:
            slot = self._new_slot(captured=False)
            self._slots.append(slot)
        slot.run()
        if slot.done is not None:
            slot.done.record()
        slot.busy = True
        return slot

    def warm_up(self) -> None:
        """Before a graph is captured: compile, and make reset, check and copy one launch for each step in flight.

        Later would be too late, because making such a launch synchronises.
        """
        if self.names:
            self._slots = [self._new_slot(captured=True) for _ in range(_STEPS_IN_FLIGHT)]

    def _new_slot(self, captured: bool) -> _Slot:
        host = self._prepared.host_buffer()
        if not host.is_pinned():
            return _Slot(host, partial(self._prepared.launch, host), None)
        run = self._prepared.capture(host).replay if captured else partial(self._prepared.launch, host)
        return _Slot(host, run, torch.cuda.Event())


class _Slot:
    """One result in flight: its buffer, what launches the check into it, the event after it, whether it is unread."""

    def __init__(self, host: torch.Tensor, run: Callable[[], Any], done: torch.cuda.Event | None) -> None:
        self.host, self.run, self.done, self.busy = host, run, done, False

    def read(self) -> Any:
        """The findings, or None. Waits for the check; at the step's own synchronisation it is long done."""
        self.busy = False
        if self.done is not None:
            try:
                self.done.synchronize()
            except RuntimeError:
                # The context died in this step. What reached the host before that is here to read.
                logger.warning("gemma4-triage: CUDA failed before a page check was read; reading what arrived")
                return self._decode_what_arrived()
        return decode(self.host)

    def _decode_what_arrived(self) -> Any:
        try:
            return decode(self.host)
        except ValueError:
            logger.warning("gemma4-triage: only a part of the result arrived")
            return None


def check_build(checker: Checker, live: bool = True) -> None:
    """Check every array of a build that a layer follows.

    Args:
        live: false at a capture, whose rows belong to no request. Nothing is launched then, and ids of another pool are
            reported without stopping the capture: the first live build stops, with a row to show.

    Raises:
        TrappedViolation: in trap mode, before any kernel has followed an index.
    """
    act = Session.guard().mode.at(checker.build.in_graph)
    slot = checker.launch() if live else None
    if slot is not None and act is Mode.TRAP:
        _settle(checker, slot, act)
    elif slot is not None:
        defer(partial(_settle, checker, slot, act))
    for use in checker.wrong_uses:
        report = partial(report_wrong_space, checker.build, use, act if live else Mode.LOG, with_rows=live)
        if act is Mode.TRAP or not live:
            report()
        else:
            defer(report)


def _settle(checker: Checker, slot: _Slot, act: Mode) -> None:
    findings = slot.read()
    if findings is not None:
        report_findings(checker.build, checker.names, findings, act)


def _guarded(build: Build, array: IndexArray) -> GuardedTable | GuardedSlots:
    bound = build.bound_of(array.name)
    if not array.paged:
        null_page = NullPage.LEGAL if array.may_be_null else NullPage.LEGAL_IN_PADDED_ROWS
        return GuardedSlots(array.values, bound, null_page, array.indptr)
    if array.space != "swa":
        return GuardedTable(array.values, bound, NullPage.LEGAL_IN_PADDED_ROWS)
    if build.window_keys < 0:
        return GuardedTable(array.values, bound, NullPage.LEGAL)
    return GuardedTable(array.values, bound, NullPage.LEGAL_IN_PADDED_ROWS, build.window_keys)
