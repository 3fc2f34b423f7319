"""Probe `page-table` on FlashInfer: the lists of token slots that its wrappers keep of a plan. See `page_table.py`.

trtllm_mha's backend is a subclass that overrides every function that is hooked here but the constructor, so it is not
checked twice. Not checked: cross attention, and the steps of `FlashInferMultiStepDraftBackend` (EAGLE's draft model,
which Gemma-4's frozen-KV draft does not use).
"""

from __future__ import annotations

from functools import partial
from typing import Any

from gemma4_runtime.indices.flashinfer import flashinfer_build, is_covered, use_of
from gemma4_runtime.indices.watch import leave_to_graph, watch_dispatch, watch_eager, watch_graph


def after_plan(result: Any, backend: Any, forward_batch: Any, **_unknown: Any) -> None:
    """Run after `FlashInferAttnBackend.init_forward_metadata`."""
    gather = partial(flashinfer_build, backend, forward_batch, "FlashInferAttnBackend.init_forward_metadata", False)
    watch_eager(backend, forward_batch, gather, covered=is_covered(backend, forward_batch))


def after_graph_plan(result: Any, backend: Any, forward_batch: Any, in_capture: bool = False, **_unknown: Any) -> None:
    """Run after `FlashInferAttnBackend.init_forward_metadata_out_graph`: the lists hold this step's ids."""
    pool = backend.cuda_graph_kv_indices
    if not in_capture and leave_to_graph(backend, forward_batch, pool):
        return
    site = "FlashInferAttnBackend.init_forward_metadata_out_graph"
    gather = partial(flashinfer_build, backend, forward_batch, site, True)
    addresses, covered = (forward_batch.seq_lens.data_ptr(),), is_covered(backend, forward_batch)
    watch_graph(backend, forward_batch, gather, in_capture, pool, addresses, covered)


def before_dispatch(backend: Any, q: Any, k: Any, v: Any, layer: Any, *args: Any, **kwargs: Any) -> None:
    """Run before `forward_decode` and `forward_extend`."""
    watch_dispatch(backend, use_of(backend, layer))
