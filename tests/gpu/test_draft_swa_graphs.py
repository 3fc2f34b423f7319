"""A draft's SWA state under real CUDA graphs, on SGLang's own backend, pools and op; and the allocator's fix there.

Their host side is in tests/unit/test_draft_swa_state.py and test_shared_layers_without_kv.py; the whole server under
graphs, with the hybrid backend, in test_graph_guards.py.
"""

from types import SimpleNamespace

import pytest
import torch

from trtllm_world import PAGE, SLIDING, attention, batch, fill, trtllm_backend

# What runs on a GPU alone has run with this release alone.
pytestmark = [pytest.mark.gpu, pytest.mark.releases("0.5.13.post1")]

LENGTHS = [60, 100]
ROWS = 2


@pytest.fixture
def allocator():
    """160 full and 64 SWA pages of 16 tokens on the device, 2 + 1 layers."""
    from sglang.srt.mem_cache.allocator.swa import SWATokenToKVPoolAllocator
    from sglang.srt.mem_cache.swa_memory_pool import SWAKVPool

    pool = SWAKVPool(
        size=160 * PAGE,
        size_swa=64 * PAGE,
        page_size=PAGE,
        dtype=torch.float16,
        head_num=2,
        head_dim=64,
        swa_attention_layer_ids=[0, 1],
        full_attention_layer_ids=[2],
        enable_kvcache_transpose=False,
        device="cuda",
    )
    return SWATokenToKVPoolAllocator(160 * PAGE, 64 * PAGE, PAGE, torch.float16, "cuda", pool, need_sort=False)


@pytest.fixture
def draft(attach, allocator):
    """Return a draft's backend as FROZEN_KV_MTP makes it, with the seed bug: without an SWA state of its own."""
    from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool

    attach("off", "swa-state-swap", "swa-state-stale")
    made = trtllm_backend(allocator)
    made.token_to_kv_pool = MHATokenToKVPool(64, PAGE, torch.float16, 2, 64, 1, "cuda", False)
    made.use_sliding_window_kv_pool = False
    made._swa_kv_pool = None
    fill(made, allocator, LENGTHS)
    return made


def on_device(lengths, rows=None):
    with torch.device("cuda"):
        made = batch(lengths, rows=rows)
    made.seq_lens_cpu = made.seq_lens.cpu()
    made.spec_info = SimpleNamespace()
    return made


def test_a_graph_reads_the_sliding_pages_of_each_replay(draft, allocator):
    """F6 and F7: the table is there at the capture, at one address, and each replay finds its own SWA pages in it."""
    from sglang.srt.speculative.frozen_kv_mtp_worker import frozen_kv_target_view

    context = SimpleNamespace(target_token_to_kv_pool=allocator.get_kvcache())
    padded = on_device([1] * ROWS, rows=[0] * ROWS)
    with frozen_kv_target_view(padded, context, draft):
        draft.init_cuda_graph_state(ROWS, ROWS)
        draft.init_forward_metadata_out_graph(padded, in_capture=True)
        table = draft._get_layer_page_table(attention(SLIDING), padded)
        seen, graph = torch.zeros_like(table), torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            seen.copy_(table)
    for lengths in (LENGTHS, [33, 90], LENGTHS):
        live = on_device(lengths)
        with frozen_kv_target_view(live, context, draft):
            draft.init_forward_metadata_out_graph(live)
            graph.replay()
        torch.cuda.synchronize()
        for row, length in enumerate(lengths):
            slots = draft.req_to_token[row + 1, 0:length:PAGE].long()
            translated = allocator.full_to_swa_index_mapping[slots] // PAGE
            assert seen[row, : len(slots)].tolist() == translated.tolist()
            assert translated.tolist() != (slots // PAGE).tolist()


def test_clearing_the_mapping_behind_a_page_waits_for_nothing(allocator):
    """`free-swa-pages` around nothing, where no wait is SGLang's own; the mapping is cleared as in its unit tests."""
    from gemma4_runtime.fixes.free_swa_pages import around_free_swa

    mapping = allocator.full_to_swa_index_mapping
    mapping[PAGE : 3 * PAGE] = torch.arange(PAGE, 3 * PAGE, device="cuda")
    given_back = torch.arange(PAGE, PAGE + 3, device="cuda")
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        around_free_swa(lambda *_: None, allocator, given_back)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert mapping[: 3 * PAGE].tolist() == [0] * 2 * PAGE + list(range(2 * PAGE, 3 * PAGE))


class Doubling:
    """An attention backend that takes what a layer without keys brings, and nothing else."""

    def forward(self, query, key, value, layer, forward_batch, save_kv_cache):
        assert key is None
        assert value is None
        assert not save_kv_cache
        return query * 2


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_an_op_without_keys_is_captured_and_replayed(compiled):
    """F10."""
    from sglang.srt.compilation.piecewise_context_manager import set_forward_context
    from sglang.srt.layers import radix_attention  # noqa: F401  (registers the op)
    from sglang.srt.model_executor.forward_context import ForwardContext, forward_context

    def shared_layer(query):
        output = torch.empty_like(query)
        torch.ops.sglang.unified_attention_with_output(query, None, None, output, False, SLIDING)
        return output + 1

    run = torch.compile(shared_layer, fullgraph=True) if compiled else shared_layer
    tokens = 24
    made = SimpleNamespace(
        num_token_non_padded_cpu=tokens, out_cache_loc=torch.zeros(tokens, dtype=torch.int64, device="cuda")
    )
    query, graph = torch.randn(tokens, 128, device="cuda"), torch.cuda.CUDAGraph()
    with (
        forward_context(ForwardContext(attn_backend=Doubling())),
        set_forward_context(made, [attention(SLIDING)], None, [], []),
    ):
        run(query)
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            output = run(query)
    query.copy_(torch.randn_like(query))
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(output, query * 2 + 1)
