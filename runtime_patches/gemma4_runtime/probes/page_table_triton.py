"""Probe `page-table` on Triton attention: its ragged lists of token slots. See `page_table.py`.

Not checked: the steps of `TritonMultiStepDraftBackend` (EAGLE's draft model, which Gemma-4's frozen-KV draft does not
use). It makes the lists of all steps itself, and at a replay it calls none of the functions that are hooked here.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from gemma4_runtime.indices.triton import gather_of, has_lists_of_its_own, triton_build, use_of
from gemma4_runtime.indices.watch import leave_to_graph, watch_dispatch, watch_eager, watch_graph


def after_metadata(result: Any, backend: Any, forward_batch: Any, **_unknown: Any) -> None:
    """Run after `TritonAttnBackend.init_forward_metadata`."""
    gather = partial(triton_build, backend, forward_batch, "TritonAttnBackend.init_forward_metadata", False)
    watch_eager(backend, forward_batch, gather, covered=has_lists_of_its_own(forward_batch))


def after_graph_metadata(
    result: Any, backend: Any, forward_batch: Any, in_capture: bool = False, **_unknown: Any
) -> None:
    """Run after `TritonAttnBackend.init_forward_metadata_out_graph`: the lists hold this step's ids."""
    pool = backend.cuda_graph_kv_indices
    if not in_capture and leave_to_graph(backend, forward_batch, pool):
        return
    gather = partial(triton_build, backend, forward_batch, "TritonAttnBackend.init_forward_metadata_out_graph", True)
    addresses = (forward_batch.seq_lens.data_ptr(),)
    covered = has_lists_of_its_own(forward_batch, in_capture)
    watch_graph(backend, forward_batch, gather, in_capture, pool, addresses, covered)


def before_decode(backend: Any, q: Any, k: Any, v: Any, layer: Any, *args: Any, **kwargs: Any) -> None:
    """Run before `TritonAttnBackend.forward_decode`."""
    watch_dispatch(backend, use_of(backend, layer))


def before_extend(backend: Any, q: Any, k: Any, v: Any, layer: Any, *args: Any, **kwargs: Any) -> None:
    """Run before `TritonAttnBackend.forward_extend`."""
    gathers = (gather_of(backend, layer),) if k is None else ()
    watch_dispatch(backend, use_of(backend, layer), *gathers)
