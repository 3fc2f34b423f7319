"""A step without drafts under spec v2: one decode of the target, told to the scheduler as a verification of one token.

The target of a server that drafts has CUDA graphs of verifications alone, and attention whose buffers those graphs
read. So it gets graphs of decodes beside them, over an attention backend of their own, as SGLang's adaptive speculation
does for each number of steps. They give the target's hidden states too: the next draft may start from any step.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from sglang.srt.managers.utils import GenerationBatchResult
from sglang.srt.model_executor.cuda_graph_runner import CudaGraphRunner
from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode, ForwardMode
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm
from sglang.srt.utils import get_available_gpu_memory

from gemma4_runtime.mtp_v2.draft_policy import Verified

logger = logging.getLogger(__name__)

ONE = 1
"""`speculative_num_draft_tokens` of the result of a step without drafts; one with them has more."""


class _DecodeGraphs(CudaGraphRunner):
    """Holds CUDA graphs of decodes of the target, which SGLang would give graphs of verifications."""

    def capture(self) -> None:
        self.capture_hidden_mode = CaptureHiddenMode.FULL
        super().capture()


class PlainStep:
    """Runs decodes of a target whose server drafts.

    Args:
        target_worker: SGLang's worker of the target, its graphs captured.
        gpu_id: Of the device, for what the graphs take of it.
    """

    def __init__(self, target_worker: Any, gpu_id: int) -> None:
        self._target = target_worker
        self._runner = target_worker.model_runner
        self.attn_backend: Any = None
        self._graphs: Any = None
        self.graphs_s = self.graphs_gib = 0.0
        arguments = self._runner.server_args
        if self._runner.device == "cuda" and not arguments.disable_cuda_graph:
            self._capture(gpu_id)

    def _capture(self, gpu_id: int) -> None:
        runner, began = self._runner, time.perf_counter()
        free = get_available_gpu_memory(runner.device, gpu_id)
        workspace = runner.init_new_workspace
        try:
            self.attn_backend = runner._get_attention_backend(init_new_workspace=True)
        finally:
            runner.init_new_workspace = workspace
        kind, runner.spec_algorithm = runner.spec_algorithm, SpeculativeAlgorithm.NONE
        try:
            self._graphs = _DecodeGraphs(runner, attn_backend=self.attn_backend)
        finally:
            runner.spec_algorithm = kind
        self.graphs_s = round(time.perf_counter() - began, 2)
        self.graphs_gib = round(free - get_available_gpu_memory(runner.device, gpu_id), 3)
        logger.info(
            "gemma4-triage: draft-policy: graphs of steps without drafts took %.1f s and %.2f GiB",
            self.graphs_s,
            self.graphs_gib,
        )

    def run(self, batch: Any) -> GenerationBatchResult:
        """Decode one token of each request; batch.spec_info has the last ones.

        Writes only fields of `batch` that the scheduler puts back after a forward. The result's hidden states are
        [requests, backbone width], and its log probabilities have an axis of one token, as a verification's.
        """
        lengths = batch.seq_lens
        slots = self._runner.req_to_token_pool.req_to_token[batch.req_pool_indices, lengths]
        batch.input_ids = batch.spec_info.bonus_tokens
        batch.out_cache_loc = slots.to(torch.int64)
        # What the cache holds once this token is in it.
        batch.seq_lens = lengths + 1
        batch.seq_lens_cpu = None if batch.seq_lens_cpu is None else batch.seq_lens_cpu + 1
        batch.seq_lens_sum = None
        batch.spec_info = None
        batch.forward_mode = ForwardMode.DECODE
        batch.capture_hidden_mode = CaptureHiddenMode.FULL
        with self._own_graphs():
            result: Any = self._target.forward_batch_generation(batch)
        result.accept_lens = torch.ones_like(lengths, dtype=torch.int32)
        result.speculative_num_draft_tokens = ONE
        result.new_seq_lens = batch.seq_lens
        output = result.logits_output
        if batch.return_logprob:
            output.next_token_logprobs = output.next_token_logprobs.unsqueeze(1)
        return result

    @contextmanager
    def _own_graphs(self) -> Iterator[None]:
        if self._graphs is None:
            yield
            return
        runner = self._runner
        before = runner.attn_backend, runner.graph_runner
        runner.attn_backend, runner.graph_runner = self.attn_backend, self._graphs
        try:
            yield
        finally:
            runner.attn_backend, runner.graph_runner = before


def verified_by(result: Any) -> Verified | None:
    """Return what a decode's processed result says of its drafts; None of a step without."""
    if result.speculative_num_draft_tokens == ONE:
        return None
    taken = result.num_correct_drafts_per_req_cpu
    return Verified(len(taken), len(taken) + sum(taken))
