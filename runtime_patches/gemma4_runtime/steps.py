"""A scheduler step: results that wait for its own synchronisation, and the requests that a finding ends.

A check that is launched in a step leaves its result in pinned memory; see `probes/page_table_steps.py` for when it is
read.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from http import HTTPStatus
from types import TracebackType
from typing import Any

import torch

from gemma4_dumps.wording import CONTAINED
from gemma4_runtime.errors import TrappedViolation

logger = logging.getLogger(__name__)


class Step:
    """One scheduler step: its number, its requests in row order, and the results that nobody has read yet.

    together: why no request of this step can be ended alone, if so. chunked: the request whose prefill goes on in
    another step, if there is one.
    """

    __slots__ = ("chunked", "number", "requests", "together", "unread")

    def __init__(
        self, number: int, requests: tuple[Any, ...], together: str | None = None, chunked: Any = None
    ) -> None:
        self.number = number
        self.requests = requests
        self.together = together
        self.chunked = chunked
        self.unread: list[Callable[[], None]] = []

    def requests_of(self, rows: tuple[int, ...]) -> list[Any]:
        """Return the requests of these rows; a row beyond the requests is padding."""
        return [self.requests[row] for row in rows if row < len(self.requests)]

    def settle(self) -> None:
        """Read every result, first to last. A finding may raise; the rest stays unread then."""
        global _reading, awaited
        before, _reading = _reading, self
        try:
            while self.unread:
                self.unread.pop(0)()
            if awaited is self:
                awaited = None
        finally:
            _reading = before


running: Step | None = None
"""The step that the scheduler is running now."""
awaited: Step | None = None
"""The step whose results are to be read before a request may finish: the one whose result SGLang is processing, else
the running one; None once they are read.
"""
_reading: Step | None = None
_latest: Step | None = None


def step_number() -> int | None:
    """Return the step whose results are being read, else the running one; None outside a scheduler."""
    step = _reading or running
    return None if step is None else step.number


def latest_step_number() -> int | None:
    """Return the step whose results are being read, else the running one, else the one that ran last.

    Batches are chosen, merged and given their slots between steps: what is found there has the number of the step
    before. None where none has run.
    """
    step = _reading or running or _latest
    return None if step is None else step.number


class Running:
    """A context manager: `step` is the running one inside. If it raises, what its checks left is read on the way out.

    A class, because a generator would cost each step microseconds.
    """

    __slots__ = ("_before", "_step")

    def __init__(self, step: Step) -> None:
        self._step = step
        self._before: Step | None = None

    def __enter__(self) -> None:
        global running, awaited, _latest
        self._before = _latest
        running = awaited = _latest = self._step

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        global running, awaited
        try:
            if isinstance(error, Exception):
                # With overlap the step before may be what the device died of, and nobody has read it yet.
                _settle_after_a_crash(self._before, self._step)
        finally:
            running = awaited = None


class InHand:
    """A context manager: SGLang is processing the result of `step` inside. Read at its end, if nobody asked before."""

    __slots__ = ("_step",)

    def __init__(self, step: Step) -> None:
        self._step = step

    def __enter__(self) -> None:
        global awaited
        awaited = self._step

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        global awaited
        try:
            if error is None:
                self._step.settle()
            elif isinstance(error, Exception):
                # Where SGLang waits for the device, a step that it died of comes to light: this one, or the next.
                _settle_after_a_crash(self._step, _latest)
        finally:
            awaited = None


def request_of(row: int) -> Any:
    """Return the request in a row of the step whose results are being read, else of the running one.

    None stands for padding, and for a process outside a scheduler.
    """
    step = _reading or running
    return next(iter(step.requests_of((row,))), None) if step is not None else None


def defer(read: Callable[[], None]) -> None:
    """Have `read` called at the step's synchronisation; at once where there is no scheduler step."""
    global awaited
    if running is None:
        read()
    else:
        running.unread.append(read)
        awaited = running


def next_waits_for(read: Callable[[], None]) -> bool:
    """Say whether the step after the one that is being read runs already, and has left the same `read`."""
    return _latest is not None and _latest is not _reading and read in _latest.unread


def settle_at_once(step: Step) -> None:
    """Read what `step` left before SGLang waits for the device: wait for it here."""
    if step.unread:
        _wait_for_the_device()
        step.settle()


def fail_requests(rows: tuple[int, ...], reason: str, dump: str | None, and_next: bool = False) -> None:
    """End the requests of these rows with an error that says why; the others go on.

    Their keys and values stem from neutralised reads and must not reach the prefix cache. With `and_next` the step
    after the one being read has launched the same check, and its requests in these rows end too: it cannot be told
    which of the two it was, and none that may be wrong goes on.

    Raises:
        TrappedViolation: it cannot be done for single requests: outside a scheduler step; on several ranks, where one
            rank must not end a request alone; where prefill is disaggregated, which caches and sends whatever it has
            computed; between two chunks of a prefill, which SGLang runs to its end, through the prefix cache.
    """
    step = _reading
    together = "outside a scheduler step" if step is None else step.together
    if step is None or together is not None:
        raise TrappedViolation(f"{reason}; {together} a single request cannot be ended", dump)
    steps = [step, _latest] if and_next and _latest is not None else [step]
    concerned = {id(found): found for each in steps for found in each.requests_of(rows)}.values()
    chunked = [each.chunked for each in steps if each.chunked is not None]
    if any(request is prefill for request in concerned for prefill in chunked):
        raise TrappedViolation(f"{reason}; between chunks of its prefill a request cannot be ended", dump)
    from gemma4_runtime.release import FINISH_ABORT

    for request in concerned:
        # With overlap its last step may have been built already: nothing of that is used.
        if request.finished() or request.is_retracted:
            continue
        abort = FINISH_ABORT(f"{CONTAINED}{reason}", HTTPStatus.INTERNAL_SERVER_ERROR, "ContainedViolation")
        request.skip_radix_cache_insert = True
        request.to_finish = abort


@dataclass(frozen=True)
class Concerned:
    """by_row: requests that go on, with the row that each was in. chunked: those in the middle of a prefill."""

    step: int | None
    by_row: tuple[tuple[int, Any], ...]
    chunked: tuple[Any, ...]


def concerned(rows: Iterable[int], and_next: bool = False) -> Concerned:
    """Return the requests of these rows in the step whose results are being read; and_next: as for `fail_requests`."""
    step = _reading or running
    if step is None:
        return Concerned(None, (), ())
    each = [step, _latest] if and_next and _latest is not None and _latest is not step else [step]
    found = [(row, request) for one in each for row in rows for request in one.requests_of((row,))]
    # One that has finished has its reply, and one that was retracted is computed anew.
    going_on = [(row, request) for row, request in found if not (request.finished() or request.is_retracted)]
    # The same request in both steps, and in the same row, is one.
    once = {(row, id(request)): (row, request) for row, request in going_on}
    return Concerned(step.number, tuple(once.values()), tuple(one.chunked for one in each if one.chunked is not None))


def _settle_after_a_crash(*crashed: Step | None) -> None:
    """Read what a step that raised has found, because that may be why. Pinned memory outlives the CUDA context."""
    unread = [step for step in crashed if step is not None and step.unread]
    if not unread:
        return
    try:
        _wait_for_the_device()
        for step in unread:
            step.settle()
    # Broad on purpose: SGLang's own exception is on its way and must not be replaced.
    except Exception as error:  # noqa: BLE001
        logger.error("gemma4-triage: what the checks of the crashed step found could not be read: %s", error)


def _wait_for_the_device() -> None:
    try:
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()
    except RuntimeError:
        # The context is dead. What reached the host before that is there to read.
        logger.warning("gemma4-triage: CUDA failed before page checks were read; reading what arrived")
