"""When a build is checked: eager, at a graph's replay, and at a layer's dispatch; the same for every backend."""

from __future__ import annotations

import logging
import operator
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any

import torch

from gemma4_runtime import steps
from gemma4_runtime.errors import TrappedViolation
from gemma4_runtime.indices.act import act_at
from gemma4_runtime.indices.build import Build, Use
from gemma4_runtime.indices.check import Checker, Recorded, check_build
from gemma4_runtime.settings import Mode
from gemma4_runtime.steps import defer

logger = logging.getLogger(__name__)
_defects: Counter[str] = Counter()
_BUILD = "_gemma4_build"
_CHECKERS = "_gemma4_checkers"
_NEW_SLOTS = "_gemma4_static_new_slots"
_CAPTURED = "_gemma4_captured"
# Checks that wait for their capture to begin, by the identity of the backend.
_to_record: dict[int, Recorded] = {}

Gather = Callable[[torch.Tensor | None], Build]
"""From the list of new slots that the kernels will read, [tokens or more], to the build."""


class _DefectsOfOurs:
    """A context manager in which whatever a check meets stops the server in trap mode.

    In the other modes a defect of ours must not: it is named, and the build goes unchecked. A class, because a
    generator would cost each build microseconds.
    """

    __slots__ = ("_in_graph",)

    def __init__(self, in_graph: bool) -> None:
        self._in_graph = in_graph

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> bool:
        # This is the boundary between our code and a server that works: any Exception, but never a finding.
        if not isinstance(error, Exception) or isinstance(error, TrappedViolation):
            return False
        if act_at(self._in_graph) is Mode.TRAP:
            return False
        text = f"{type(error).__name__}: {error}"
        _defects[text] += 1
        if _defects[text] == 1:
            message = "gemma4-triage: page-table could not check a build, which went on UNCHECKED: %s"
            logger.error(message, text, exc_info=error)
        return True


def watch_eager(backend: Any, forward_batch: Any, gather: Gather, covered: bool = True) -> None:
    """Check the eager build that `gather` returns, now. covered: false for what is not checked, at dispatch either."""
    if not covered:
        setattr(backend, _BUILD, None)
        return
    if act_at(in_graph=False).neutralises and forward_batch.out_cache_loc is not None:
        # What is neutralised for the kernels must not reach the allocator, which frees rejected slots from this list.
        forward_batch.out_cache_loc = forward_batch.out_cache_loc.clone()
    setattr(backend, _BUILD, None)
    with _DefectsOfOurs(in_graph=False):
        build = gather(forward_batch.out_cache_loc)
        setattr(backend, _BUILD, build)
        if build.rows:
            check_build(Checker(build))


def watch_graph(
    backend: Any,
    forward_batch: Any,
    gather: Gather,
    in_capture: bool,
    pool: Any,
    addresses: tuple[int, ...] = (),
    covered: bool = True,
) -> None:
    """Check a graph's static arrays, which hold this step's ids while the graph waits. One checker per bucket.

    A check that the graph itself holds is only read. It covers the static arrays, whatever the batch of a replay
    brings; what a replay may change is the pool in force, and with that whose ids the arrays hold.

    The batch of a capture brings the static list of new slots, which the graph will read; a replay's brings the list
    that it was filled from.

    `pool` is what decides, besides the pool in force, whose ids the arrays hold, by identity; `addresses` are those of
    arrays that a check which is launched from here has bound. If either is another one, a new checker is made of what
    `gather` returns. `covered` is as for `watch_eager`.
    """
    if in_capture:
        _to_record.pop(id(backend), None)
    setattr(backend, _BUILD, None)
    if not covered:
        return
    with _DefectsOfOurs(in_graph=True):
        # An enum's own hash is a call into Python.
        key = (forward_batch.batch_size, int(forward_batch.forward_mode))
        state = ((backend.token_to_kv_pool, pool), (forward_batch.req_pool_indices.data_ptr(), *addresses))
        found = _captured if in_capture else _replayed
        checker = found(backend, key, state, forward_batch, gather)
        setattr(backend, _BUILD, checker.build)
        check_build(checker, live=not in_capture)


_State = tuple[tuple[Any, Any], tuple[int, ...]]


def _captured(backend: Any, key: Any, state: _State, forward_batch: Any, gather: Gather) -> Checker:
    static: dict[Any, torch.Tensor | None] = vars(backend).setdefault(_NEW_SLOTS, {})
    static[key] = forward_batch.out_cache_loc
    made = _Kept(*state, Checker(gather(static[key])))
    # A graph goes by its addresses: a check that it holds is kept until another capture takes its place.
    for kept in (_CAPTURED, _CHECKERS):
        vars(backend).setdefault(kept, {})[key] = made
    _prepare_for(backend, made.checker)
    return made.checker


def _replayed(backend: Any, key: Any, state: _State, forward_batch: Any, gather: Gather) -> Checker:
    captured: _Kept | None = vars(backend).get(_CAPTURED, {}).get(key)
    recorded = None if captured is None else captured.checker.recorded
    if captured is not None and recorded is not None:
        if captured.same_pools(*state[0]):
            return captured.checker
        # The graph still checks, and in contain neutralises, by the pools of its capture.
        defer(recorded.settle)
    kept: dict[Any, _Kept] = vars(backend).setdefault(_CHECKERS, {})
    found = kept.get(key)
    if found is None or found.checker.recorded is not None or not found.fits(*state):
        found = kept[key] = _Kept(*state, Checker(gather(vars(backend).get(_NEW_SLOTS, {}).get(key))))
    return found.checker


def leave_to_graph(backend: Any, forward_batch: Any, pool: Any) -> bool:
    """Say whether the graph that is about to be replayed holds its own check, captured with these pools.

    Then that will be read, and `watch_graph` has nothing to do. Asked once per build and replay: as little as possible.
    """
    captured = backend.__dict__.get(_CAPTURED)
    found = captured.get((forward_batch.batch_size, int(forward_batch.forward_mode))) if captured else None
    if found is None or found.checker.read_replay is None or steps.running is None:
        return False
    pools = found.pools
    if pools[0] is not backend.token_to_kv_pool or pools[1] is not pool:
        return False
    defer(found.checker.read_replay)
    return True


def record_checks(*backends: Any) -> None:
    """Put the checks of these backends' metadata builds into the CUDA graph that is being captured, if one is.

    Called where a graph begins, or else where its first attention layer does.
    """
    if not _to_record or not torch.cuda.is_current_stream_capturing():
        return
    with _DefectsOfOurs(in_graph=True):
        for backend in backends:
            recorded = _to_record.pop(id(backend), None)
            if recorded is not None:
                recorded.record()


def _prepare_for(backend: Any, checker: Checker) -> None:
    """Do all that could make a replay wait, or that a capture does not allow."""
    if act_at(in_graph=True) is Mode.TRAP or not checker.build.request_slots.is_cuda:
        checker.warm_up()
    elif (recorded := checker.prepare_recording()) is not None:
        _to_record[id(backend)] = recorded


@dataclass(frozen=True, slots=True)
class _Kept:
    """A checker and what it goes by. addresses: the request slots' first."""

    pools: tuple[Any, Any]
    addresses: tuple[int, ...]
    checker: Checker

    def same_pools(self, in_force: Any, translating: Any) -> bool:
        return _same(self.pools[0], in_force) and _same(self.pools[1], translating)

    def fits(self, pools: tuple[Any, Any], addresses: tuple[int, ...]) -> bool:
        return self.same_pools(*pools) and self.addresses == addresses


def _same(old: Any, new: Any) -> bool:
    """Compare by identity; lists, which SGLang makes anew, by what they hold."""
    if isinstance(old, list | tuple):
        return isinstance(new, list | tuple) and len(old) == len(new) and all(map(operator.is_, old, new))
    return old is new


def watch_dispatch(backend: Any, *uses: Use) -> None:
    """Compare a layer's own choice of array and buffer with those that the build covered; check what it did not."""
    build: Build | None = getattr(backend, _BUILD, None)
    if build is None:
        return
    record_checks(backend)
    with _DefectsOfOurs(build.in_graph):
        covered = {(use.array, use.buffer_space, use.bound) for use in build.uses}
        known = {array.name for array in build.arrays}
        for use in uses:
            # SGLang itself fails on an array that the build does not have.
            if use.array not in known or (use.array, use.buffer_space, use.bound) in covered:
                continue
            from gemma4_runtime.release import get_is_capture_mode

            uncovered = replace(build, uses=(use,), pool=backend.token_to_kv_pool)
            # SGLang captures anew without its capture mode.
            capturing = torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()
            check_build(Checker(uncovered), live=not (capturing or get_is_capture_mode()))
