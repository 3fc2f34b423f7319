"""MTP with overlap scheduling: the worker that SGLang's scheduler drives under spec v2, overlapped or not.

A sibling of EAGLEWorkerV2. The target's half, verification, is that worker's own; the draft's half is the assistant's,
which writes no KV, so what EAGLE does as a draft-extend is one row of the target's hidden states per request here.

It leaves to the scheduler whatever belongs to requests: output ids, finish state, KV lengths and their release,
grammar, penalties, the sliding window. It cuts nothing off at an end token: the scheduler judges the accepted run.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import torch
from sglang.srt.layers.moe.utils import speculative_moe_a2a_backend_context, speculative_moe_backend_context
from sglang.srt.managers.utils import GenerationBatchResult
from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode
from sglang.srt.speculative.eagle_worker_v2 import EAGLEWorkerV2, _get_plan_stream
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

from gemma4_runtime import current
from gemma4_runtime.mtp_v2.draft_policy import ALWAYS, policy_of
from gemma4_runtime.mtp_v2.draft_worker import FrozenKVMTPDraftWorkerV2
from gemma4_runtime.mtp_v2.gates import refuse_what_is_not_served
from gemma4_runtime.mtp_v2.plain_step import PlainStep, verified_by

logger = logging.getLogger(__name__)

Publish = Callable[[torch.Tensor], None]


class FrozenKVMTPWorkerV2(EAGLEWorkerV2):
    """In place of SGLang's class of that name, which raises."""

    def __init__(
        self,
        server_args: Any,
        gpu_id: int,
        tp_rank: int,
        dp_rank: int | None,
        moe_ep_rank: int,
        attn_cp_rank: int,
        moe_dp_rank: int,
        nccl_port: int,
        target_worker: Any,
    ) -> None:
        """Makes what EAGLEWorkerV2 makes, but for a draft worker with KV of its own.

        Raises:
            NotServed: an argument that is not served.
        """
        refuse_what_is_not_served(server_args)
        self.server_args = server_args
        self.topk = server_args.speculative_eagle_topk
        self._steps = server_args.speculative_num_steps
        self._without_drafts = False
        self.speculative_num_draft_tokens = server_args.speculative_num_draft_tokens
        self.tp_rank = tp_rank
        self.gpu_id = gpu_id
        self.device = server_args.device
        self.page_size = server_args.page_size
        self.speculative_algorithm = SpeculativeAlgorithm.from_string(server_args.speculative_algorithm)
        self._target_worker = target_worker
        self.req_to_token_pool, self.token_to_kv_pool_allocator = target_worker.get_memory_pool()
        self._draft_worker = FrozenKVMTPDraftWorkerV2(
            server_args,
            gpu_id,
            tp_rank,
            dp_rank,
            moe_ep_rank,
            attn_cp_rank,
            moe_dp_rank,
            nccl_port,
            target_worker,
        )
        self.adaptive_controller = None
        self.plan_stream, self.plan_stream_ctx = _get_plan_stream(self.device)
        text = target_worker.model_runner.model_config.hf_text_config
        self._policy = policy_of(
            current.settings().drafts if current.switched_on("draft-policy") else ALWAYS,
            (text.hidden_size, text.num_hidden_layers),
            self.speculative_num_draft_tokens,
        )
        self._plain = PlainStep(target_worker, gpu_id) if self._policy.may_drop else None
        if self._plain is not None:
            logger.info("gemma4-triage: draft-policy: drafts where they pay: %s", self._policy.document()["source"])

    @property
    def speculative_num_steps(self) -> int:
        """Returns what SGLang's metrics tell: 0 while no drafts are made."""
        return 0 if self._without_drafts else self._steps

    @property
    def spec_v2_attn_backends(self) -> tuple[Any, ...]:
        """Return the attention backends that a step goes through."""
        plain = self._plain.attn_backend if self._plain else None
        found = (self._target_worker.model_runner.attn_backend, self._draft_worker.draft_attn_backend, plain)
        return tuple(backend for backend in found if backend is not None)

    def hear_of(self, result: GenerationBatchResult) -> None:
        """Take in the result of a decode that the scheduler has processed."""
        if (verified := verified_by(result)) is not None:
            self._policy.observe(verified)

    def draft_state(self) -> dict[str, Any]:
        """Return when it drafts and why, for /server_info."""
        graphs = self._plain and {"seconds": self._plain.graphs_s, "gib": self._plain.graphs_gib}
        return self._policy.document() | {"graphs_of_steps_without": graphs}

    def forward_batch_generation(self, batch: Any, on_publish: Publish | None = None) -> GenerationBatchResult:
        """Return one step. on_publish: told each request's next length as soon as the target's forward settles it.

        The result has, of a decode: next_token_ids [requests * draft tokens], each request's accepted run first;
        accept_lens [requests], the bonus token included; new_seq_lens [requests]. next_draft_input is over the whole
        batch, requests that are about to finish included.
        """
        if batch.forward_mode.is_extend() or batch.is_extend_in_batch:
            return self._prefill(batch, on_publish)
        return self._decode(batch, on_publish)

    def _prefill(self, batch: Any, on_publish: Publish | None) -> GenerationBatchResult:
        batch.capture_hidden_mode = CaptureHiddenMode.FULL
        result: Any = self.target_worker.forward_batch_generation(batch)
        # Lengths count what the KV cache holds: the token that the target has just said is not in it yet.
        result.new_seq_lens = batch.seq_lens
        if on_publish is not None:
            on_publish(result.new_seq_lens)
        result.next_draft_input = self._draft_worker.seed_after_prefill(
            batch, result.next_token_ids, result.logits_output.hidden_states
        )
        return result

    def _decode(self, batch: Any, on_publish: Publish | None) -> GenerationBatchResult:
        if batch.spec_info is None:
            batch.spec_info = self._draft_worker.no_seed()
        idle = batch.forward_mode.is_idle() or not len(batch.seq_lens)
        self._without_drafts = not idle and not self._policy.decide(len(batch.seq_lens))
        if self._without_drafts:
            return self._decode_without_drafts(batch, on_publish)
        with (
            self._draft_worker.draft_tp_context(self._draft_worker.draft_runner.tp_group),
            speculative_moe_backend_context(),
            speculative_moe_a2a_backend_context(),
        ):
            batch.spec_info = self._draft_worker.draft(batch)
        result: Any = self.verify(batch)
        if on_publish is not None:
            on_publish(result.new_seq_lens)
        result.next_draft_input = self._draft_worker.seed_after_verify(
            result.next_draft_input.bonus_tokens, result.accept_lens, result.logits_output.hidden_states
        )
        return result

    def _decode_without_drafts(self, batch: Any, on_publish: Publish | None) -> GenerationBatchResult:
        assert self._plain is not None
        if on_publish is not None:
            # Known before the forward: where the host asks for lengths, it need not wait for its end.
            on_publish(batch.seq_lens + 1)
        result: Any = self._plain.run(batch)
        # The states may lie in a graph's buffers, which the next replay overwrites.
        hidden = result.logits_output.hidden_states.clone()
        result.next_draft_input = self._draft_worker.seed(result.next_token_ids, hidden)
        return result
