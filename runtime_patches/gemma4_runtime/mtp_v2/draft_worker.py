"""The assistant's side of MTP under spec v2: it drafts, and remembers where the next draft starts.

It is SGLang's FrozenKVMTPWorker as far as that loads the assistant, binds it to the target's KV and runs the loop over
draft steps, eager or as a CUDA graph. What V1 does for the scheduler is not done here, because under spec v2 the
scheduler does it: it counts penalties, frees what has left the window and ticks each request's steps when it prepares
a decode, and judges tokens when it processes the result.
"""

from __future__ import annotations

from typing import Any

import torch
from sglang.srt.layers.attention.hybrid_attn_backend import HybridAttnBackend
from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode, ForwardBatch, ForwardMode
from sglang.srt.speculative.base_spec_worker import BaseDraftWorker
from sglang.srt.speculative.eagle_utils import build_tree_kernel_efficient
from sglang.srt.speculative.frozen_kv_mtp_cuda_graph_runner import FrozenKVMTPCudaGraphRunner
from sglang.srt.speculative.frozen_kv_mtp_info import FrozenKVMTPDraftInput, FrozenKVMTPVerifyInput
from sglang.srt.speculative.frozen_kv_mtp_worker import FrozenKVMTPWorker
from sglang.srt.utils import is_pin_memory_available


class FrozenKVMTPDraftWorkerV2(FrozenKVMTPWorker, BaseDraftWorker):
    """Never driven by the scheduler: FrozenKVMTPWorkerV2 calls `draft` and the two functions that make seeds."""

    topk: int
    speculative_num_steps: int
    speculative_num_draft_tokens: int

    @property
    def draft_runner(self) -> Any:
        return self.model_runner

    def init_cuda_graphs(self) -> None:
        """Do as V1, which leaves drafts of one step eager, as if they had no forward; they have the seed's."""
        super().init_cuda_graphs()
        eager = self.server_args.disable_cuda_graph or self.target_worker.device != "cuda"
        if self.cuda_graph_runner is None and not eager:
            self.cuda_graph_runner = FrozenKVMTPCudaGraphRunner(self)

    def forward_batch_generation(self, batch: Any) -> Any:
        """V1's whole step, bookkeeping included, has no place under spec v2."""
        raise TypeError("FrozenKVMTPDraftWorkerV2 only drafts; FrozenKVMTPWorkerV2 runs steps")

    def verify(self, batch: Any) -> Any:
        """V1's verification ends requests inside the forward: the scheduler would then never release their KV."""
        raise TypeError("FrozenKVMTPDraftWorkerV2 only drafts; FrozenKVMTPWorkerV2 verifies")

    def draft_extend(self) -> None:
        """Do nothing: there is nothing to extend, because the assistant has no KV of its own."""

    def draft(self, batch: Any) -> FrozenKVMTPVerifyInput:
        """Return one tree of draft tokens per request. batch.spec_info is where it starts: see `seed`.

        Writes only fields of `batch` that the scheduler puts back after a forward.
        """
        if batch.forward_mode.is_idle():
            return self._nothing_to_verify()
        start: FrozenKVMTPDraftInput = batch.spec_info
        parents, scores, tokens = self._run_drafts(self._draft_batch(batch, start))
        mask_buffer, position_buffer = self._verify_buffers(batch.seq_lens.shape[0])
        mask, positions, index, next_token, next_sibling, tokens = build_tree_kernel_efficient(
            start.bonus_tokens,
            parents,
            scores,
            tokens,
            batch.seq_lens,
            0 if mask_buffer is not None else self._length_bound(batch, batch.seq_lens.shape[0]),
            self.topk,
            self.speculative_num_steps,
            self.speculative_num_draft_tokens,
            tree_mask_buf=mask_buffer,
            position_buf=position_buffer,
        )
        return self._to_verify(tokens, mask, positions, index, next_token, next_sibling)

    def _verify_buffers(self, rows: int) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """Return the mask and the positions that a graph's verification of so many requests reads; None: make one.

        A hybrid does not pass the question on to the part that verifies. A mask made beside the graph's has room for
        whole contexts, and with every row taken it is larger than the graph's, which a replay copies it to.
        """
        runner = self.target_worker.model_runner
        backend = runner.attn_backend
        if isinstance(backend, HybridAttnBackend):
            backend = backend._select_backend(ForwardMode.TARGET_VERIFY)
        mask, positions = backend.get_verify_buffers_to_fill_after_draft()
        if mask is not None and mask.numel() < rows * self.speculative_num_draft_tokens * self._longest():
            # More requests than a graph is for: they are verified eagerly, and their rows may not fit.
            mask = None
        return mask, positions

    def _longest(self) -> int:
        """Say what no request's length exceeds, the tokens included that a step is about to write."""
        rows: Any = self.target_worker.model_runner.req_to_token_pool
        return rows.req_to_token.shape[1]

    def _to_verify(self, tokens: Any, mask: Any, positions: Any, *links: torch.Tensor) -> FrozenKVMTPVerifyInput:
        """links: where each node's row is, its first child and its next sibling, [requests, nodes] each."""
        index, next_token, next_sibling = links
        # Lengths are the batch's: verification fills them in.
        fields: dict[str, Any] = dict.fromkeys(("retrieve_cum_len", "seq_lens_sum", "seq_lens_cpu"))
        return FrozenKVMTPVerifyInput(
            draft_token=tokens,
            custom_mask=mask,
            positions=positions,
            retrieve_index=index,
            retrieve_next_token=next_token,
            retrieve_next_sibling=next_sibling,
            spec_steps=self.speculative_num_steps,
            topk=self.topk,
            draft_token_num=self.speculative_num_draft_tokens,
            capture_hidden_mode=CaptureHiddenMode.FULL,
            **fields,
        )

    def _draft_batch(self, batch: Any, start: FrozenKVMTPDraftInput) -> Any:
        start.num_tokens_per_req = start.num_tokens_for_logprob_per_req = self.topk
        start.positions = self._position_for_batch(batch)
        batch.capture_hidden_mode = CaptureHiddenMode.LAST
        # The assistant writes no KV, and what the scheduler left there has the size of another forward.
        batch.out_cache_loc = None
        forward_batch: Any = ForwardBatch.init_new(batch, self.draft_model_runner)
        forward_batch.return_logprob = False
        forward_batch.num_token_non_padded_cpu = forward_batch.batch_size
        if forward_batch.num_token_non_padded is not None:
            forward_batch.num_token_non_padded.fill_(forward_batch.batch_size)
        self._set_positions(forward_batch)
        self._expand_for_topk_draft(forward_batch)
        forward_batch.out_cache_loc = None
        # A graph's replay adds its padding to it.
        forward_batch.seq_lens_sum = self._length_bound(forward_batch, forward_batch.batch_size)
        return forward_batch

    def _run_drafts(self, forward_batch: ForwardBatch) -> Any:
        """Parents, scores and tokens of each step, as `organize_draft_results` has them."""
        if self.cuda_graph_runner and self.cuda_graph_runner.can_run(forward_batch):
            return self.cuda_graph_runner.replay(forward_batch)
        forward_batch.can_run_dp_cuda_graph = False
        return self.draft_forward(forward_batch)

    def _init_frozen_kv_metadata(self, forward_batch: ForwardBatch) -> None:
        """Do as V1, which asks the device for the sum of lengths where the host does not have them."""
        with self._frozen_kv_target_view(forward_batch):
            self.draft_attn_backend.init_forward_metadata(forward_batch)
        forward_batch.mark_forward_metadata_ready()

    def _length_bound(self, lengths: Any, rows: int) -> int:
        """Return the sum of lengths if the host knows them, else what it cannot exceed: it only sizes buffers."""
        if lengths.seq_lens_cpu is not None:
            return int(lengths.seq_lens_cpu.sum())
        return rows * self._longest()

    def _nothing_to_verify(self) -> FrozenKVMTPVerifyInput:
        def empty(*shape: int, dtype: torch.dtype = torch.long) -> torch.Tensor:
            return torch.empty(shape, dtype=dtype, device=self.device)

        links = [empty(0, self.speculative_num_draft_tokens) for _ in range(3)]
        return self._to_verify(empty(0), empty(0, dtype=torch.bool), empty(0), *links)

    def seed(self, tokens: torch.Tensor, hidden: torch.Tensor) -> FrozenKVMTPDraftInput:
        """Say where the next draft starts: tokens [requests], the target's hidden states [requests, backbone width].

        The same types after a prefill as after a decode, because the scheduler joins batches of both. What the draft
        makes of them is made inside its CUDA graph, so the top-k fields only have the right shape.
        """
        rows = tokens.shape[0]
        return FrozenKVMTPDraftInput(
            bonus_tokens=tokens.to(torch.int64),
            hidden_states=hidden.to(self.model_config.dtype),
            topk_p=torch.zeros((rows, self.topk), dtype=torch.float32, device=tokens.device),
            topk_index=torch.zeros((rows, self.topk), dtype=torch.int64, device=tokens.device),
            capture_hidden_mode=CaptureHiddenMode.LAST,
            num_tokens_per_req=1,
            num_tokens_for_logprob_per_req=1,
        )

    def no_seed(self) -> FrozenKVMTPDraftInput:
        """Return the seed of a batch without requests."""
        hidden = torch.empty((0, self._recurrent_hidden_size), dtype=self.model_config.dtype, device=self.device)
        return self.seed(torch.empty((0,), dtype=torch.int64, device=self.device), hidden)

    def seed_after_prefill(self, batch: Any, tokens: torch.Tensor, hidden: torch.Tensor) -> FrozenKVMTPDraftInput:
        """tokens: [requests], what the target said; hidden: its states, of all rows or of each request's last."""
        if batch.forward_mode.is_idle() or not batch.extend_lens:
            return self.no_seed()
        if hidden.shape[0] != len(batch.extend_lens):
            ends = torch.tensor(batch.extend_lens, dtype=torch.int64).cumsum(0) - 1
            if is_pin_memory_available(self.device):
                ends = ends.pin_memory()
            hidden = hidden[ends.to(hidden.device, non_blocking=True)]
        return self.seed(tokens, hidden)

    def seed_after_verify(self, bonus: torch.Tensor, accepted: torch.Tensor, hidden: torch.Tensor) -> Any:
        """bonus, accepted (that one included): [requests]; hidden: [requests * draft tokens, backbone width].

        The last accepted token of each request is what the target had read when it said the bonus token.
        """
        if accepted.shape[0] == 0:
            return self.no_seed()
        first = torch.arange(accepted.shape[0], device=accepted.device) * self.speculative_num_draft_tokens
        return self.seed(bonus, hidden[first + accepted - 1])
