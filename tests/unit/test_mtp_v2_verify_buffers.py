"""A draft writes its mask under spec v2 to where SGLang's Triton backend, alone or in a hybrid, verifies from."""

from types import SimpleNamespace

import pytest
import torch
from sglang.srt.layers.attention.hybrid_attn_backend import HybridAttnBackend
from sglang.srt.model_executor.forward_batch_info import ForwardMode

from gemma4_runtime.mtp_v2.draft_worker import FrozenKVMTPDraftWorkerV2
from slot_list_backends import batch, fill, triton_backends
from trtllm_world import trtllm_backend

# 0.5.14 and later have spec v2 themselves: mtp-v2 and what it brings are for 0.5.13.post1.
pytestmark = pytest.mark.releases("0.5.13.post1")

ROWS, NODES = 4, 4
# A row of slots: the context, and what spec v2 allocates ahead.
CONTEXT, WIDTH = 256, 268


@pytest.fixture
def triton(attach, swa_allocator, monkeypatch):
    attach("off", "host-alloc-kernels", "mtp-v2")
    with triton_backends(swa_allocator, monkeypatch) as make:
        made = make()
        made.req_to_token = made.kept_runner.req_to_token_pool.req_to_token = torch.zeros(5, WIDTH, dtype=torch.int32)
        made.init_cuda_graph_state(ROWS, ROWS * NODES)
        yield made


def worker_over(backend, runner):
    made = object.__new__(FrozenKVMTPDraftWorkerV2)
    made.speculative_num_draft_tokens = NODES
    target = SimpleNamespace(attn_backend=backend, req_to_token_pool=runner.req_to_token_pool)
    made.target_worker = SimpleNamespace(model_runner=target)
    return made


def hybrid(triton, swa_allocator, verifies):
    triton.kept_runner.server_args.speculative_attention_mode = verifies
    return HybridAttnBackend(triton.kept_runner, triton, trtllm_backend(swa_allocator))


@pytest.mark.parametrize("alone", [True, False])
def test_a_full_batch_is_verified_by_the_graphs_mask(triton, swa_allocator, alone):
    """A hybrid says that it has no such mask. One made beside it would not fit into it; the replay raised."""
    backend = triton if alone else hybrid(triton, swa_allocator, "prefill")
    mask, positions = worker_over(backend, triton.kept_runner)._verify_buffers(ROWS)
    assert mask is triton.cuda_graph_custom_mask
    assert positions is None
    fill(triton, [9, 20, 33, 40])
    verified = batch([5, 16, 29, 36], ForwardMode.TARGET_VERIFY)
    verified.spec_info.custom_mask = mask
    backend.init_forward_metadata_out_graph(verified)


def test_a_part_that_needs_no_mask_is_asked_where_it_verifies(triton, swa_allocator):
    backend = hybrid(triton, swa_allocator, "decode")
    assert worker_over(backend, triton.kept_runner)._verify_buffers(ROWS) == (None, None)


def test_more_requests_than_graphs_are_for_have_a_mask_of_their_own(triton):
    """They are verified eagerly, and what they need may be more than the graphs' mask has room for."""
    mask, _ = worker_over(triton, triton.kept_runner)._verify_buffers(ROWS + 1)
    assert mask is None


def test_without_graphs_there_is_no_mask_to_fill(triton):
    triton.cuda_graph_custom_mask = None
    assert worker_over(triton, triton.kept_runner)._verify_buffers(1) == (None, None)


def test_the_graphs_mask_has_room_for_drafts_behind_full_contexts(triton):
    """SGLang's has room for contexts alone, and the kernel that writes it does not look."""
    lengths = torch.full((ROWS,), CONTEXT + NODES)
    assert triton.cuda_graph_custom_mask.numel() >= int((NODES * (lengths + NODES)).sum())
    assert triton.max_context_len == CONTEXT
    assert not triton.cuda_graph_custom_mask.any()


def test_a_backend_that_captures_no_prefill_has_no_mask(triton):
    triton.cuda_graph_custom_mask, triton.skip_prefill = None, True
    triton.init_cuda_graph_state(ROWS, ROWS * NODES)
    assert triton.cuda_graph_custom_mask is None
