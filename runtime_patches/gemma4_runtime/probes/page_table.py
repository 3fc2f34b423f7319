"""Probe `page-table`: indices that attention kernels are about to follow lie in the buffer that they lead into.

One check per metadata build, on the leaf backend and inside whatever pool swap is in force, over every array that a
layer of the model will follow: page tables, lists of token slots and write locations. Eager, at the end of
`init_forward_metadata`; under CUDA graphs, where no Python runs at replay, on the static arrays right after SGLang has
filled them. The buffers are those of the model's own layers, so a sliding layer that will be handed the full pool's
table is measured against the SWA buffer, which is what the kernel will do.

At each dispatch, and so at capture, a layer's choice of table and buffer is compared with those that the build covered:
the pool may have been swapped for one and not for the other. That costs no GPU work.

Here: trtllm_mha, and what every backend has in common. `page_table_triton.py` is Triton attention,
`page_table_flashinfer.py` FlashInfer.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from gemma4_kernels.page_guard.launch import GuardedTable, PageGuard
from gemma4_runtime.errors import VerificationFailed
from gemma4_runtime.indices.owner import remember_owner
from gemma4_runtime.indices.trtllm import trtllm_build, use_of
from gemma4_runtime.indices.watch import leave_to_graph, record_checks, watch_dispatch, watch_eager, watch_graph

RULE = "page-table-bounds"


def after_init(result: Any, backend: Any, model_runner: Any, *args: Any, **kwargs: Any) -> None:
    """Run after a backend's `__init__`."""
    remember_owner(backend, model_runner)


def after_metadata(result: Any, backend: Any, forward_batch: Any, **_unknown: Any) -> None:
    """Run after `TRTLLMHAAttnBackend.init_forward_metadata`."""
    site = "TRTLLMHAAttnBackend.init_forward_metadata"
    watch_eager(backend, forward_batch, partial(trtllm_build, backend, forward_batch, site, False))


def after_graph_metadata(
    result: Any, backend: Any, forward_batch: Any, in_capture: bool = False, **_unknown: Any
) -> None:
    """Run after `TRTLLMHAAttnBackend.init_forward_metadata_out_graph`: the graph waits.

    In 0.5.23 the arrays still hold the ids of the replay before: the graph itself begins with the kernel that fills
    them. A check that the graph holds comes behind that. For one that is launched from here the kernel is run here,
    which changes nothing: the replay writes the same again.
    """
    pool = backend._swa_kv_pool
    if in_capture or not leave_to_graph(backend, forward_batch, pool):
        if not in_capture:
            backend.init_forward_metadata_in_graph(forward_batch)
        site = "TRTLLMHAAttnBackend.init_forward_metadata_out_graph"
        watch_graph(backend, forward_batch, partial(trtllm_build, backend, forward_batch, site, True), in_capture, pool)


def before_in_graph(backend: Any, forward_batch: Any, **_unknown: Any) -> None:
    """Run before `AttentionBackend.init_forward_metadata_in_graph`, with which SGLang begins a graph of the target.

    Backends that fill their arrays there have their own, which does not come here: their check begins with the first
    layer's dispatch.
    """
    # A hybrid backend does not pass the call on.
    record_checks(backend, getattr(backend, "decode_backend", None), getattr(backend, "prefill_backend", None))


def before_dispatch(
    backend: Any, q: Any, k: Any, v: Any, layer: Any, forward_batch: Any, *args: Any, **kwargs: Any
) -> None:
    """Run before `forward_decode` and `forward_extend`."""
    watch_dispatch(backend, use_of(backend, layer, forward_batch))


def self_test() -> None:
    """Fire on a planted page, stay silent on a clean table.

    Raises:
        VerificationFailed: the check no longer tells them apart.
    """
    lens, guard = torch.tensor([33]), PageGuard("cpu")
    found = []
    for page in (3, 4):
        table = GuardedTable(torch.tensor([[1, 2, page, 99]], dtype=torch.int32), 4)
        found.append(guard.check([table], lens, 16, contain=False))
    clean, planted = found
    if clean is not None or planted is None or planted.offences[0].value != 4:
        raise VerificationFailed(f"{RULE}: self test: clean table gave {clean}, planted page gave {planted}")
