"""When a build is checked: eager, at a graph's replay, and at a layer's dispatch; the same for every backend."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch

from gemma4_runtime.errors import TrappedViolation
from gemma4_runtime.indices.build import Build, Use
from gemma4_runtime.indices.check import Checker, check_build
from gemma4_runtime.session import Session
from gemma4_runtime.settings import Mode

logger = logging.getLogger(__name__)
_defects: Counter[str] = Counter()
_BUILD = "_gemma4_build"
_CHECKERS = "_gemma4_checkers"
_NEW_SLOTS = "_gemma4_static_new_slots"


Gather = Callable[[torch.Tensor | None], Build]
"""From the list of new slots that the kernels will read, [tokens or more], to the build."""


@contextmanager
def _defects_of_ours(in_graph: bool) -> Iterator[None]:
    """In trap mode whatever a check meets stops the server. In the others a defect of ours must not: it is named, and
    the build goes unchecked.
    """
    try:
        yield
    except TrappedViolation:
        raise
    # Broad on purpose: this is the boundary between our code and a server that works.
    except Exception as error:
        if Session.guard().mode.at(in_graph) is Mode.TRAP:
            raise
        text = f"{type(error).__name__}: {error}"
        _defects[text] += 1
        if _defects[text] == 1:
            logger.exception("gemma4-triage: page-table could not check a build, which went on UNCHECKED: %s", text)


def watch_eager(backend: Any, forward_batch: Any, gather: Gather, covered: bool = True) -> None:
    """Check the eager build that `gather` returns, now. covered: false for what is not checked, at dispatch either."""
    if not covered:
        setattr(backend, _BUILD, None)
        return
    if Session.guard().mode is Mode.CONTAIN and forward_batch.out_cache_loc is not None:
        # What is neutralised for the kernels must not reach the allocator, which frees rejected slots from this list.
        forward_batch.out_cache_loc = forward_batch.out_cache_loc.clone()
    setattr(backend, _BUILD, None)
    with _defects_of_ours(in_graph=False):
        build = gather(forward_batch.out_cache_loc)
        setattr(backend, _BUILD, build)
        if build.rows:
            check_build(Checker(build))


def watch_graph(
    backend: Any,
    forward_batch: Any,
    gather: Gather,
    in_capture: bool,
    holds: tuple[Any, ...],
    covered: bool = True,
) -> None:
    """Check a graph's static arrays, which hold this step's ids while the graph waits. One checker per bucket.

    The batch of a capture brings the static list of new slots, which the graph will read; a replay's brings the list
    that it was filled from.

    holds: what a checker goes by, by identity or, for addresses, by value: another pool or other storage needs a new
    one, from what `gather` returns. covered: as for `watch_eager`.
    """
    if not covered:
        setattr(backend, _BUILD, None)
        return
    setattr(backend, _BUILD, None)
    with _defects_of_ours(in_graph=True):
        kept: dict[Any, tuple[tuple[Any, ...], Checker]] = vars(backend).setdefault(_CHECKERS, {})
        key = (forward_batch.batch_size, forward_batch.forward_mode)
        static: dict[Any, torch.Tensor | None] = vars(backend).setdefault(_NEW_SLOTS, {})
        if in_capture:
            static[key] = forward_batch.out_cache_loc
            kept.pop(key, None)
        holds = (backend.token_to_kv_pool, forward_batch.req_pool_indices.data_ptr(), *holds)
        if key not in kept or not all(map(_same, kept[key][0], holds)):
            kept[key] = (holds, Checker(gather(static.get(key))))
        checker = kept[key][1]
        setattr(backend, _BUILD, checker.build)
        if in_capture:
            # Now, so that no replay waits for a compilation.
            checker.warm_up()
        check_build(checker, live=not in_capture)


def _same(old: Any, new: Any) -> bool:
    """Addresses by value, all else by identity; lists, which SGLang makes anew, by what they hold."""
    if isinstance(old, list | tuple):
        return isinstance(new, list | tuple) and len(old) == len(new) and all(map(_same, old, new))
    return old is new or (isinstance(old, int) and old == new)


def watch_dispatch(backend: Any, *uses: Use) -> None:
    """Compare a layer's own choice of array and buffer with those that the build covered; check what it did not."""
    build: Build | None = getattr(backend, _BUILD, None)
    if build is None:
        return
    with _defects_of_ours(build.in_graph):
        covered = {(use.array, use.buffer_space, use.bound) for use in build.uses}
        known = {array.name for array in build.arrays}
        for use in uses:
            # SGLang itself fails on an array that the build does not have.
            if use.array not in known or (use.array, use.buffer_space, use.bound) in covered:
                continue
            from sglang.srt.model_executor.cuda_graph_runner import get_is_capture_mode

            uncovered = replace(build, uses=(use,), pool=backend.token_to_kv_pool)
            check_build(Checker(uncovered), live=not get_is_capture_mode())
