"""trtllm_mha needs no lengths from the device under spec v2: a bound that the host knows sizes what it sizes.

In a decode trtllm_mha of this release reads the largest length on the host, for nothing but how many columns of page
tables it fills; lengths themselves go to the kernels on the device. SGLang therefore copies every length to the host
before each step, and waits for it until the verification before has ended. Slots are allocated ahead of each step, so
no request is longer than what it holds, the tokens that are about to be written included. 0.5.14 gives trtllm_mha its
longest context instead.

| hook                        | what happens                                                          |
|-----------------------------|-----------------------------------------------------------------------|
| decide_needs_cpu_seq_lens   | trtllm_mha, alone or as a part of a hybrid, is not asked              |
| resolve_seq_lens_cpu        | the batch that is about to run has a bound, or knows its lengths      |
| init_forward_metadata, _out_graph of trtllm_mha | read the bound where they would read lengths      |
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from gemma4_runtime.optimisations.schedule_stream import scheduler_comes_later
from gemma4_runtime.release import HybridAttnBackend, TRTLLMHAAttnBackend


class _OfThisStep:
    """bound: no request of the batch that runs has more tokens; None where SGLang knows the lengths."""

    bound: int | None = None


def that_read_lengths(attn_backends: Iterable[Any]) -> Iterator[Any]:
    """Yield the backends less trtllm_mha, a hybrid's parts one by one."""
    for backend in attn_backends:
        if isinstance(backend, HybridAttnBackend):
            yield from that_read_lengths((backend.prefill_backend, backend.decode_backend))
        elif type(backend) is not TRTLLMHAAttnBackend:
            yield backend


def around_resolve_lengths(original: Callable[..., None], future_map: Any, batch: Any) -> None:
    """Run around `FutureMap.resolve_seq_lens_cpu`, which each overlapped batch goes through before it runs."""
    original(future_map, batch)
    verifies = batch.spec_info is not None and batch.spec_info.future_indices is not None
    unknown = verifies and batch.seq_lens_cpu is None and batch.reqs
    _OfThisStep.bound = max(request.kv_allocated_len for request in batch.reqs) if unknown else None


def around_metadata(original: Callable[..., None], backend: Any, forward_batch: Any, in_capture: bool = False) -> None:
    """Run around trtllm_mha's eager build, and its build for a graph's capture and replay."""
    bound = _OfThisStep.bound
    if in_capture:
        original(backend, forward_batch, in_capture=True)
        return
    if bound is None:
        original(backend, forward_batch)
        # A verification's tables are built behind its draft, for whose end the host has not waited either.
        scheduler_comes_later()
        return
    # Of a graph's replay they are what an earlier batch left in the graph's buffer.
    known, forward_batch.seq_lens_cpu = forward_batch.seq_lens_cpu, bounded(forward_batch.seq_lens, bound)
    try:
        original(backend, forward_batch)
        scheduler_comes_later()
    finally:
        forward_batch.seq_lens_cpu = known


def bounded(lengths: torch.Tensor, bound: int) -> torch.Tensor:
    """Return as many bounds as there are lengths, on the host. Lengths are not read: they lie on the device."""
    return torch.full((lengths.shape[0],), bound, dtype=torch.int64)
