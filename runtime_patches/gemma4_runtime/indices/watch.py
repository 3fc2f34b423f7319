"""When a build is checked: eager, at a graph's replay, and at a layer's dispatch; the same for every backend."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from gemma4_runtime.indices.build import Build, Use
from gemma4_runtime.indices.check import Checker, check_build
from gemma4_runtime.session import Session
from gemma4_runtime.settings import Mode

_BUILD = "_gemma4_build"
_CHECKERS = "_gemma4_checkers"


def watch_eager(backend: Any, forward_batch: Any, gather: Callable[[], Build], covered: bool = True) -> None:
    """Check the eager build that `gather` returns, now. covered: false for what is not checked, at dispatch either."""
    if not covered:
        setattr(backend, _BUILD, None)
        return
    if Session.guard().mode is Mode.CONTAIN and forward_batch.out_cache_loc is not None:
        # What is neutralised for the kernels must not reach the allocator, which frees rejected slots from this list.
        forward_batch.out_cache_loc = forward_batch.out_cache_loc.clone()
    build = gather()
    setattr(backend, _BUILD, build)
    if build.rows:
        check_build(Checker(build))


def watch_graph(
    backend: Any,
    forward_batch: Any,
    gather: Callable[[], Build],
    in_capture: bool,
    holds: tuple[Any, ...],
    covered: bool = True,
) -> None:
    """Check a graph's static arrays, which hold this step's ids while the graph waits. One checker per bucket.

    holds: what a checker goes by, by identity or, for addresses, by value: another pool or other storage needs a new
    one, from what `gather` returns. covered: as for `watch_eager`.
    """
    if not covered:
        setattr(backend, _BUILD, None)
        return
    kept: dict[Any, tuple[tuple[Any, ...], Checker]] = vars(backend).setdefault(_CHECKERS, {})
    key = (forward_batch.batch_size, forward_batch.forward_mode)
    locations = forward_batch.out_cache_loc
    holds = (
        backend.token_to_kv_pool,
        None if locations is None else locations.data_ptr(),
        forward_batch.req_pool_indices.data_ptr(),
        *holds,
    )
    if key not in kept or any(old is not new and old != new for old, new in zip(kept[key][0], holds, strict=True)):
        kept[key] = (holds, Checker(gather()))
    checker = kept[key][1]
    setattr(backend, _BUILD, checker.build)
    if in_capture:
        # Now, so that no replay waits for a compilation.
        checker.warm_up()
    check_build(checker, live=not in_capture)


def watch_dispatch(backend: Any, *uses: Use) -> None:
    """Compare a layer's own choice of array and buffer with those that the build covered; check what it did not."""
    build: Build | None = getattr(backend, _BUILD, None)
    if build is None:
        return
    covered = {(use.array, use.buffer_space, use.bound) for use in build.uses}
    known = {array.name for array in build.arrays}
    for use in uses:
        # SGLang itself fails on an array that the build does not have.
        if use.array not in known or (use.array, use.buffer_space, use.bound) in covered:
            continue
        from sglang.srt.model_executor.cuda_graph_runner import get_is_capture_mode

        uncovered = replace(build, uses=(use,), pool=backend.token_to_kv_pool)
        check_build(Checker(uncovered), live=not get_is_capture_mode())
