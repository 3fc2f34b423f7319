"""Check a build with the page_guard kernel: at once where the mode traps, else when the step synchronises anyway.

| mode    | the kernel             | the host reads its result                                           |
|---------|------------------------|---------------------------------------------------------------------|
| trap    | checks                 | now, a synchronisation, and raises before any attention kernel runs |
| contain | checks and neutralises | when SGLang next decides which requests finish, after its own wait  |
| log     | checks                 | as contain                                                          |
| clamp   | checks and neutralises | as contain                                                          |

In all but `trap` the check of a CUDA graph's arrays is a node of that graph, ahead of the kernels that follow
them: a replay costs the host no launch, and what is checked is what the graph will read. `trap`, which has to look
before the replay, and a replay whose pool is not that of the capture, launch it from the host.

Ids of another pool than their buffer's are found without the device, whatever their values.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

import torch

from gemma4_kernels.page_guard.launch import (
    Findings,
    GuardedSlots,
    GuardedTable,
    NullPage,
    Padding,
    PageGuard,
    PreparedCheck,
)
from gemma4_kernels.page_guard.spec import FOUND
from gemma4_runtime import steps
from gemma4_runtime.indices.act import act_at
from gemma4_runtime.indices.build import Build, IndexArray
from gemma4_runtime.indices.report import report_findings, report_wrong_space
from gemma4_runtime.settings import Mode
from gemma4_runtime.steps import defer, next_waits_for

logger = logging.getLogger(__name__)
# With overlap a step is launched before the one before it is read.
_STEPS_IN_FLIGHT = 2


class Checker:
    """The checks of one build, launched once for an eager build and once per replay for a graph's static arrays.

    recorded: the check that the graph itself holds. read_replay: all that is left to do per replay then, if it is.

    One prepared check for each step in flight, because its result lies in memory of its own until it is read.
    """

    def __init__(self, build: Build) -> None:
        self.build = build
        self.wrong_uses = build.wrong_uses()
        self._arrays = [array for array in build.arrays if build.bound_of(array.name) > 0]
        self.names = tuple(array.name for array in self._arrays)
        self.recorded: Recorded | None = None
        self.read_replay: Callable[[], None] | None = None
        self._slots: list[_Slot] = []

    def launch(self) -> _Slot | None:
        """Launch a check on the current stream; no synchronisation. None: no array of the build is followed."""
        if not self.names:
            return None
        slot = next((slot for slot in self._slots if not slot.busy), None)
        if slot is None:
            slot = self._new_slot()
            self._slots.append(slot)
        slot.launch()
        return slot

    def warm_up(self) -> None:
        """Compile, and prepare a check for each step in flight, so that no replay waits for that."""
        if self.names:
            self._slots = [self._new_slot() for _ in range(_STEPS_IN_FLIGHT)]

    def prepare_recording(self) -> Recorded | None:
        """Return a check for the graph that is about to be captured; None: no array of the build is followed. Waits."""
        if not self.names:
            return None
        prepared = self._prepare()
        # A first launch loads the kernel, which a capture does not allow. The arrays belong to nobody yet.
        prepared.launch()
        if self.build.request_slots.is_cuda:
            torch.cuda.current_stream().synchronize()
        prepared.result.zero_()
        return Recorded(self, prepared)

    def _new_slot(self) -> _Slot:
        prepared = self._prepare()
        return _Slot(prepared, torch.cuda.Event() if self.build.request_slots.is_cuda else None)

    def _prepare(self) -> PreparedCheck:
        build = self.build
        return PageGuard(build.request_slots.device).prepare(
            [_guarded(build, array) for array in self._arrays],
            build.cache_seqlens,
            build.page_size,
            contain=act_at(build.in_graph).neutralises,
            # Padded rows (graph buckets, DP padding, warm-up) carry request slot 0, which ReqToTokenPool never hands
            # out; their pages are the null page by design.
            padding=Padding(build.request_slots, 0),
        )


class Recorded:
    """A check inside a captured graph, whose every replay is a launch. Keep it as long as the graph.

    All replays share one result. With overlap the next step's replay may be running when this one's result is read, and
    nothing in it says which of the two found something: both steps' requests in these rows are taken to be concerned.
    """

    def __init__(self, checker: Checker, prepared: PreparedCheck) -> None:
        self._checker, self._prepared = checker, prepared
        self._words = prepared.result.numpy().data

    def record(self) -> None:
        """Call while the graph is being captured, before the kernels that follow the arrays."""
        self._prepared.launch()
        self._checker.recorded = self
        if not self._checker.wrong_uses:
            self._checker.read_replay = self.settle

    def settle(self) -> None:
        """Report what was found, if anything was. One word is read if all is well."""
        if not self._words[FOUND]:
            return
        try:
            if self._checker.build.request_slots.is_cuda:
                torch.cuda.synchronize()
        except RuntimeError:
            logger.warning("gemma4-triage: CUDA failed before a page check was read; reading what arrived")
        findings = _read(self._prepared)
        if findings is not None:
            build = self._checker.build
            act = act_at(build.in_graph)
            report_findings(build, self._checker.names, findings, act, next_waits_for(self.settle))


class _Slot:
    """One result in flight: the check that it is of, the event after the launch, whether it is unread."""

    def __init__(self, prepared: PreparedCheck, done: torch.cuda.Event | None) -> None:
        self._prepared, self._done, self.busy = prepared, done, False

    def launch(self) -> None:
        self._prepared.launch()
        if self._done is not None:
            self._done.record()
        self.busy = True

    def read(self) -> Findings | None:
        """Return the findings, or None. Waits for the check; at the step's own synchronisation it is long done."""
        self.busy = False
        if self._done is not None:
            try:
                self._done.synchronize()
            except RuntimeError:
                # The context died in this step. What reached the host before that is here to read.
                logger.warning("gemma4-triage: CUDA failed before a page check was read; reading what arrived")
        return _read(self._prepared)


def _read(prepared: PreparedCheck) -> Findings | None:
    try:
        return prepared.read()
    except ValueError as error:
        # Torn by a crash, or overwritten: whatever did that is worse than the loss of this result.
        logger.error("gemma4-triage: the result of a page check is lost: %s", error)
        return None


def check_build(checker: Checker, live: bool = True) -> None:
    """Check every array of a build that a layer follows.

    Args:
        checker: of this build.
        live: false at a capture, whose rows belong to no request. Nothing is launched then, and ids of another pool are
            reported without stopping the capture: the first live build stops, with a row to show.

    Raises:
        TrappedViolation: in trap mode, before any kernel has followed an index.
    """
    act = act_at(checker.build.in_graph)
    if live and checker.recorded is not None and steps.running is not None:
        defer(checker.recorded.settle)
    elif live:
        _launch(checker, act)
    for use in checker.wrong_uses:
        report = partial(report_wrong_space, checker.build, use, act if live else Mode.LOG, with_rows=live)
        if act is Mode.TRAP or not live:
            report()
        else:
            defer(report)


def _launch(checker: Checker, act: Mode) -> None:
    slot = checker.launch()
    if slot is None:
        return
    if act is Mode.TRAP:
        _settle(checker, slot, act)
    else:
        defer(partial(_settle, checker, slot, act))


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
