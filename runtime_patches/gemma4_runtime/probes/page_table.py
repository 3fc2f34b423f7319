"""Probe `page-table`: indices that attention kernels are about to follow lie in the buffer that they lead into.

One check per metadata build, on the leaf backend and inside whatever pool swap is in force, over every array that a
layer of the model will follow: page tables and write locations. Eager, at the end of `init_forward_metadata`; under
CUDA graphs, where no Python runs at replay, on the static arrays right after SGLang has filled them. The buffers are
those of the model's own layers, so a sliding layer that will be handed the full pool's table is measured against the
SWA buffer, which is what the kernel will do.

At each dispatch, and so at capture, a layer's choice of table and buffer is compared with those that the build covered:
the pool may have been swapped for one and not for the other. That costs no GPU work.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from gemma4_kernels.page_guard.launch import GuardedTable, PageGuard, decode
from gemma4_runtime.errors import VerificationFailed
from gemma4_runtime.indices.build import Build
from gemma4_runtime.indices.check import Checker, check_build
from gemma4_runtime.indices.owner import remember_owner
from gemma4_runtime.indices.trtllm import trtllm_build, use_of
from gemma4_runtime.session import Session
from gemma4_runtime.settings import Mode

RULE = "page-table-bounds"
_BUILD = "_gemma4_build"
_CHECKERS = "_gemma4_checkers"


def after_init(result: Any, backend: Any, model_runner: Any, *args: Any, **kwargs: Any) -> None:
    """After a backend's `__init__`."""
    remember_owner(backend, model_runner)


def after_metadata(result: Any, backend: Any, forward_batch: Any) -> None:
    """After `TRTLLMHAAttnBackend.init_forward_metadata`."""
    if Session.guard().mode is Mode.CONTAIN and forward_batch.out_cache_loc is not None:
        # What is neutralised for the kernels must not reach the allocator, which frees rejected slots from this list.
        forward_batch.out_cache_loc = forward_batch.out_cache_loc.clone()
    build = trtllm_build(backend, forward_batch, "TRTLLMHAAttnBackend.init_forward_metadata", in_graph=False)
    setattr(backend, _BUILD, build)
    if build.rows:
        check_build(Checker(build))


def after_graph_metadata(result: Any, backend: Any, forward_batch: Any, in_capture: bool = False) -> None:
    """After `TRTLLMHAAttnBackend.init_forward_metadata_out_graph`: the arrays hold this step's ids, the graph waits."""
    checker = _graph_checker(backend, forward_batch)
    setattr(backend, _BUILD, checker.build)
    if in_capture:
        # Now, so that no replay waits for a compilation.
        checker.warm_up()
    check_build(checker, live=not in_capture)


def before_dispatch(backend: Any, q: Any, k: Any, v: Any, layer: Any, *args: Any, **kwargs: Any) -> None:
    """Before `forward_decode` and `forward_extend`."""
    build: Build | None = getattr(backend, _BUILD, None)
    if build is None:
        return
    use = use_of(backend, layer)
    if any((use.array, use.buffer_space, use.bound) == (u.array, u.buffer_space, u.bound) for u in build.uses):
        return
    from sglang.srt.model_executor.cuda_graph_runner import get_is_capture_mode

    uncovered = replace(build, uses=(use,), pool=backend.token_to_kv_pool)
    check_build(Checker(uncovered), live=not get_is_capture_mode())


def self_test() -> None:
    """Fire on a planted page, stay silent on a clean table.

    Raises:
        VerificationFailed: the check no longer tells them apart.
    """
    lens, guard = torch.tensor([33]), PageGuard(1, "cpu")
    found = []
    for page in (3, 4):
        table = GuardedTable(torch.tensor([[1, 2, page, 99]], dtype=torch.int32), 4)
        found.append(decode(guard.check([table], lens, 16, contain=False)))
    clean, planted = found
    if clean is not None or planted is None or planted.offences[0].value != 4:
        raise VerificationFailed(f"{RULE}: self test: clean table gave {clean}, planted page gave {planted}")


def _graph_checker(backend: Any, forward_batch: Any) -> Checker:
    """The checker of one bucket. Its arrays are static; another pool or other storage needs a new one."""
    kept: dict[Any, tuple[tuple[Any, ...], Checker]] = vars(backend).setdefault(_CHECKERS, {})
    key = (forward_batch.batch_size, forward_batch.forward_mode)
    locations, slots = forward_batch.out_cache_loc, forward_batch.req_pool_indices
    holds = (
        backend.token_to_kv_pool,
        backend._swa_kv_pool,
        None if locations is None else locations.data_ptr(),
        slots.data_ptr(),
    )
    if key not in kept or any(old is not new and old != new for old, new in zip(kept[key][0], holds, strict=True)):
        site = "TRTLLMHAAttnBackend.init_forward_metadata_out_graph"
        kept[key] = (holds, Checker(trtllm_build(backend, forward_batch, site, in_graph=True)))
    return kept[key][1]
