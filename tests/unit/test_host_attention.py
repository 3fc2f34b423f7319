"""The reference paged attention against an independent fp64 reading, and its device models."""

import math

import pytest
import torch

from gemma4_runtime.host import paged_attention
from gemma4_runtime.host.arena import lay_in_arena
from gemma4_runtime.host.paged_attention import IllegalAddress
from gemma4_runtime.settings import DeviceModel

pytestmark = pytest.mark.releases("0.5.13.post1", "0.5.23")

PAGE = 16


def make_cache(pages, kv_heads, dim, generator):
    return tuple(torch.randn(pages, PAGE, kv_heads, dim, generator=generator).permute(0, 2, 1, 3) for _ in "kv")


def oracle(query, cache, table, length, first_query, window_left, scale):
    """Compute one request in fp64. query [queries, heads, dim] at positions first_query, first_query+1, ..."""
    keys, values = (torch.stack([c[int(table[j // PAGE]), :, j % PAGE] for j in range(length)]).double() for c in cache)
    out = torch.zeros(query.shape, dtype=torch.float64)
    group = query.shape[1] // keys.shape[1]
    for i in range(query.shape[0]):
        position = first_query + i
        low = max(0, position - window_left) if window_left >= 0 else 0
        for head in range(query.shape[1]):
            k, v = keys[low : position + 1, head // group], values[low : position + 1, head // group]
            weights = torch.softmax((k @ query[i, head].double()) * scale, 0)
            out[i, head] = weights @ v
    return out


@pytest.mark.parametrize("window_left", [-1, 0, 7, 31])
@pytest.mark.parametrize(("heads", "kv_heads", "dim"), [(4, 2, 16), (4, 1, 32), (3, 3, 8)])
@pytest.mark.parametrize("queries", [1, 4])
def test_decode_and_verify(window_left, heads, kv_heads, dim, queries):
    g = torch.Generator().manual_seed(1)
    cache = make_cache(40, kv_heads, dim, g)
    lens = torch.tensor([queries, 16, 17, 63, 64, 65, 101], dtype=torch.int32)
    # Columns past each request's end hold ids that no kernel may touch.
    table = torch.full((len(lens), 12), 10**6, dtype=torch.int32)
    for row, length in enumerate(lens.tolist()):
        live = math.ceil(length / PAGE)
        table[row, :live] = torch.randperm(39, generator=g)[:live] + 1
    query = torch.randn(len(lens) * queries, heads, dim, generator=g)
    out = paged_attention.trtllm_batch_decode_with_kv_cache(
        query=query,
        kv_cache=cache,
        block_tables=table,
        seq_lens=lens,
        bmm1_scale=0.3,
        bmm2_scale=1.0,
        window_left=window_left,
        q_len_per_req=queries,
    )
    for row, length in enumerate(lens.tolist()):
        part = slice(row * queries, (row + 1) * queries)
        expected = oracle(query[part], cache, table[row], length, length - queries, window_left, 0.3)
        torch.testing.assert_close(out[part].double(), expected, atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize("window_left", [-1, 31])
def test_context_with_uneven_queries_and_prefixes(window_left):
    g = torch.Generator().manual_seed(2)
    cache = make_cache(30, 2, 16, g)
    lens, new = [20, 50, 33, 7], [20, 13, 1, 0]
    table = torch.stack([torch.randperm(29, generator=g)[:6] + 1 for _ in lens]).to(torch.int32)
    query = torch.randn(sum(new), 4, 16, generator=g)
    bounds = torch.tensor([0, *torch.tensor(new).cumsum(0).tolist()], dtype=torch.int32)
    out = paged_attention.trtllm_batch_context_with_kv_cache(
        query=query,
        kv_cache=cache,
        block_tables=table,
        seq_lens=torch.tensor(lens, dtype=torch.int32),
        bmm1_scale=0.25,
        bmm2_scale=1.0,
        cum_seq_lens_q=bounds,
        window_left=window_left,
    )
    for row, (length, count) in enumerate(zip(lens, new, strict=True)):
        part = slice(int(bounds[row]), int(bounds[row + 1]))
        expected = oracle(query[part], cache, table[row], length, length - count, window_left, 0.25)
        torch.testing.assert_close(out[part].double(), expected, atol=2e-6, rtol=1e-5)


def test_window_matches_transformers_mask():
    """window_left = sliding_window - 1 is the mask that transformers builds for Gemma-4's sliding layers."""
    from transformers import Gemma4TextConfig
    from transformers.masking_utils import create_sliding_window_causal_mask

    length, window = 40, 8
    config = Gemma4TextConfig(sliding_window=window, num_hidden_layers=1, layer_types=["sliding_attention"])
    config._attn_implementation = "eager"
    embeds = torch.zeros(1, length, 4)
    mask = create_sliding_window_causal_mask(
        config=config,
        inputs_embeds=embeds,
        attention_mask=None,
        past_key_values=None,
        position_ids=torch.arange(length)[None],
    )
    g = torch.Generator().manual_seed(3)
    q, k, v = (torch.randn(length, 2, 16, generator=g) for _ in range(3))
    expected = torch.nn.functional.scaled_dot_product_attention(
        *(x.double().transpose(0, 1)[None] for x in (q, k, v)), attn_mask=mask.double()[..., :length]
    )[0].transpose(0, 1)
    pages = -(-length // PAGE)
    padded = [torch.cat([x, torch.zeros(pages * PAGE - length, 2, 16)]).view(pages, PAGE, 2, 16) for x in (k, v)]
    cache = tuple(torch.cat([torch.zeros(1, PAGE, 2, 16), x]).permute(0, 2, 1, 3) for x in padded)
    out = paged_attention.trtllm_batch_context_with_kv_cache(
        query=q,
        kv_cache=cache,
        block_tables=torch.arange(1, pages + 1, dtype=torch.int32)[None],
        seq_lens=torch.tensor([length], dtype=torch.int32),
        bmm1_scale=16**-0.5,
        bmm2_scale=1.0,
        cum_seq_lens_q=torch.tensor([0, length], dtype=torch.int32),
        window_left=window - 1,
    )
    torch.testing.assert_close(out.double(), expected, atol=2e-6, rtol=1e-5)


def one_query(cache, pages, model, monkeypatch, window_left=-1):
    monkeypatch.setenv("GEMMA4_TRIAGE_DEVICE_MODEL", model.value)
    return paged_attention.trtllm_batch_decode_with_kv_cache(
        query=torch.ones(1, 2, 8),
        kv_cache=cache,
        block_tables=torch.tensor([pages], dtype=torch.int32),
        seq_lens=torch.tensor([len(pages) * PAGE], dtype=torch.int32),
        bmm1_scale=1.0,
        bmm2_scale=1.0,
        window_left=window_left,
    )


def arena_cache():
    """Return two layers of 3 pages each, as the pool lays them out: swa k0 k1, swa v0 v1."""
    lists = [[torch.randn(3 * PAGE, 2, 8) for _ in range(2)] for _ in "kv"]
    lay_in_arena(lists)
    return [tuple(buffers[i].view(-1, PAGE, 2, 8).permute(0, 2, 1, 3) for buffers in lists) for i in range(2)]


class TestDeviceModels:
    def test_sm100_faults_on_the_first_page_outside(self, monkeypatch):
        cache = arena_cache()[0]
        one_query(cache, [1, 2], DeviceModel.SM100, monkeypatch)
        for page in (3, -1):
            with pytest.raises(IllegalAddress, match=f"page {page} of 3"):
                one_query(cache, [1, page], DeviceModel.SM100, monkeypatch)

    def test_sm90_reads_the_neighbour(self, monkeypatch):
        first, second = arena_cache()
        # Page 4 of layer 0's keys is page 1 of layer 1's keys: the arena puts them side by side.
        expected = one_query((second[0], second[1]), [1], DeviceModel.SM90, monkeypatch)
        assert torch.equal(one_query(first, [4], DeviceModel.SM90, monkeypatch), expected)

    def test_sm90_faults_beyond_the_arena(self, monkeypatch):
        cache = arena_cache()[0]
        for page in (100_000, -1):
            with pytest.raises(IllegalAddress, match="beyond the memory"):
                one_query(cache, [page], DeviceModel.SM90, monkeypatch)

    def test_pages_that_the_window_has_left_are_not_read(self, monkeypatch):
        cache = arena_cache()[0]
        one_query(cache, [99, 1], DeviceModel.SM100, monkeypatch, window_left=8)
        with pytest.raises(IllegalAddress):
            one_query(cache, [99, 1], DeviceModel.SM100, monkeypatch, window_left=16)


def test_a_pool_keeps_its_pointer_tables_true_in_the_arena(attach, request):
    """SGLang's copy kernels address buffers through these tables; the arena moves the buffers."""
    attach("off", "host-paged-attention")
    pool = request.getfixturevalue("swa_allocator").get_kvcache()
    storages = set()
    for child in (pool.swa_kv_pool, pool.full_kv_pool):
        buffers = child.k_buffer + child.v_buffer
        assert child.data_ptrs.tolist() == [tensor.data_ptr() for tensor in buffers]
        assert child.k_data_ptrs.tolist() + child.v_data_ptrs.tolist() == child.data_ptrs.tolist()
        storages |= {tensor.untyped_storage().data_ptr() for tensor in buffers}
    assert len(storages) == 1


def test_what_it_cannot_do_is_refused_by_name():
    with pytest.raises(NotImplementedError, match="sinks"):
        paged_attention.trtllm_batch_decode_with_kv_cache(
            query=torch.ones(1, 2, 8),
            kv_cache=arena_cache()[0],
            block_tables=torch.ones(1, 1, dtype=torch.int32),
            seq_lens=torch.ones(1, dtype=torch.int32),
            bmm1_scale=1.0,
            bmm2_scale=1.0,
            sinks=torch.ones(2),
        )
