"""Regression test of feature row F10: layers that read another's keys hand `unified_attention_with_output` none.

SGLang takes this way in an extend inside a piecewise graph's context. The op, the trtllm_mha backend, pools and layers
are its own; only the CUDA kernel is the host engine's stand-in.
"""

from types import SimpleNamespace

import pytest
import torch
from sglang.srt.compilation.piecewise_context_manager import set_forward_context
from sglang.srt.layers import radix_attention
from sglang.srt.model_executor.forward_batch_info import ForwardMode
from sglang.srt.model_executor.forward_context import ForwardContext, forward_context

from trtllm_world import FULL, SLIDING, STAND_INS, attention, batch, fill, graph_attention_on_cpu, trtllm_backend

# 0.5.23 has no unified_attention_with_output.
pytestmark = pytest.mark.releases("0.5.13.post1")

LENGTH, PADDED = 20, 24


@pytest.fixture(scope="module", autouse=True)
def on_a_cpu():
    with graph_attention_on_cpu():
        yield


@pytest.fixture
def backend(attach, swa_allocator):
    attach("off", *STAND_INS)
    made = trtllm_backend(swa_allocator)
    fill(made, swa_allocator, [LENGTH])
    return made


def extend(backend):
    """Return a prefill of one request of LENGTH tokens, padded to PADDED, as a piecewise graph has it."""
    made = batch([LENGTH], ForwardMode.EXTEND, tokens=LENGTH)
    made.extend_prefix_lens = torch.tensor([0])
    made.extend_prefix_lens_cpu = [0]
    made.extend_seq_lens = torch.tensor([LENGTH])
    made.extend_seq_lens_cpu = [LENGTH]
    made.num_token_non_padded_cpu = LENGTH
    made.out_cache_loc = torch.zeros(PADDED, dtype=torch.int64)
    made.out_cache_loc[:LENGTH] = backend.req_to_token[1, :LENGTH].long()
    backend.init_forward_metadata(SimpleNamespace(**vars(made) | {"out_cache_loc": made.out_cache_loc[:LENGTH]}))
    return made


def ask(backend, layer, query, key, value, save):
    made = extend(backend)
    layers = [attention(one) for one in range(3)]
    layers[layer.layer_id] = layer
    with forward_context(ForwardContext(attn_backend=backend)), set_forward_context(made, layers, None, [], []):
        return layer(query, key, value, made, save_kv_cache=save)


@pytest.mark.parametrize("layer_id", [SLIDING, FULL])
def test_a_layer_without_keys_reads_its_owners(backend, layer_id):
    torch.manual_seed(0)
    query, key, value = (torch.randn(PADDED, 2 * 8) for _ in range(3))
    owner = ask(backend, attention(layer_id), query, key, value, True)
    buffers = [buffer.clone() for buffer in backend.token_to_kv_pool.get_kv_buffer(layer_id)]
    shared = ask(backend, attention(layer_id), query, None, None, False)
    assert torch.equal(shared[:LENGTH], owner[:LENGTH])
    assert shared[:LENGTH].abs().sum() > 0
    # It writes none.
    assert all(map(torch.equal, buffers, backend.token_to_kv_pool.get_kv_buffer(layer_id)))


def test_it_is_sglangs_op_that_ran(backend, monkeypatch):
    seen = []
    own = radix_attention.unified_attention_with_output

    def watched(query, key, value, *args, **kwargs):
        seen.append((key, value))
        return own(query, key, value, *args, **kwargs)

    monkeypatch.setattr(radix_attention, "unified_attention_with_output", watched)
    ask(backend, attention(FULL), torch.randn(PADDED, 16), None, None, False)
    assert seen == [(None, None)]


def test_the_registered_op_takes_none_for_both():
    """What torch.compile traces goes by the schema: an argument that is not optional there fails at the capture."""
    schema = str(torch.ops.sglang.unified_attention_with_output.default._schema)
    assert "Tensor? key" in schema
    assert "Tensor? value" in schema
