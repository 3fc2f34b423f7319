"""The short prefill against SGLang's own Gemma4TextModel.forward, with layers that add into their input as on a GPU."""

from types import SimpleNamespace

import pytest
import torch
from sglang.srt.layers.attention.trtllm_mha_backend import TRTLLMHAAttnBackend
from sglang.srt.layers.layernorm import RMSNorm
from sglang.srt.layers.quantization.unquant import UnquantizedLinearMethod
from sglang.srt.model_executor.forward_batch_info import ForwardBatch, ForwardMode
from sglang.srt.model_executor.forward_context import ForwardContext, forward_context, get_attn_backend
from sglang.srt.models.gemma4_causal import Gemma4TextModel

from gemma4_runtime.faults.yoco_stale_cache_loc import as_extend
from gemma4_runtime.yoco.attention_view import as_decode
from gemma4_runtime.yoco.short_prefill import forward

# yoco is not ported: it needs new bodies over the prefill graph runner and layers/layer_boundary.
pytestmark = pytest.mark.releases("0.5.13.post1")

SGLANGS = Gemma4TextModel.forward
LENGTHS, WIDTH, PLE, LAYERS, FIRST = [5, 1, 7], 8, 4, 5, 3
ROWS = sum(LENGTHS)
LAST = [4, 5, 12]


def layer(seen, number):
    weight, gate = torch.randn(WIDTH, WIDTH) * WIDTH**-0.5, torch.randn(PLE, WIDTH)

    def forward(positions, hidden_states, per_layer_input, forward_batch):
        seen.append(
            (number, hidden_states.shape[0], forward_batch.forward_mode, positions.tolist(), get_attn_backend())
        )
        # As SGLang's fused norm-and-add does on CUDA: the layer's input is gone.
        hidden_states.add_(torch.tanh(hidden_states @ weight))
        return hidden_states + per_layer_input @ gate + positions[:, None] / 100, None

    return forward


@pytest.fixture
def made():
    """(a model of real norms and matrices, what its layers were given)."""
    torch.manual_seed(0)
    seen = []
    norm, final = RMSNorm(PLE, eps=1e-6), RMSNorm(WIDTH, eps=1e-6)
    for one in (norm, final):
        one.weight.data = torch.randn_like(one.weight)
        one._forward_method = one.forward_native
    weight = torch.randn(LAYERS * PLE, WIDTH)
    method = UnquantizedLinearMethod()

    class Projection(SimpleNamespace):
        def __call__(self, rows):
            return rows @ self.weight.T, None

    class Model(SimpleNamespace):
        project_per_layer_inputs = Gemma4TextModel.project_per_layer_inputs

    model = Model(
        config=SimpleNamespace(num_hidden_layers=LAYERS, hidden_size=WIDTH, num_kv_shared_layers=LAYERS - FIRST),
        pp_group=SimpleNamespace(is_first_rank=True, is_last_rank=True),
        start_layer=0,
        end_layer=LAYERS,
        layers_to_capture=[],
        layers=[layer(seen, number) for number in range(LAYERS)],
        norm=final,
        hidden_size_per_layer_input=PLE,
        per_layer_model_projection=Projection(weight=weight, bias=None, quant_method=method),
        per_layer_projection_scale=torch.tensor(WIDTH**-0.5),
        per_layer_projection_norm=norm,
        per_layer_input_scale=torch.tensor(2**-0.5),
    )
    for one in model.layers:
        one.self_attn = SimpleNamespace(sliding_window=None)
    return model, seen


@pytest.fixture
def backend():
    """Return as much of a real backend as its plan of a decode reads."""
    made = TRTLLMHAAttnBackend.__new__(TRTLLMHAAttnBackend)
    made.req_to_token_pool = SimpleNamespace(req_to_token=torch.zeros(4, 32, dtype=torch.int32))
    made.page_size, made.use_sliding_window_kv_pool, made._swa_kv_pool = 1, False, None
    made.forward_metadata = "the prefill's"
    with forward_context(ForwardContext(made)):
        yield made


def inputs():
    torch.manual_seed(1)
    batch = ForwardBatch(
        forward_mode=ForwardMode.EXTEND,
        batch_size=3,
        input_ids=None,
        req_pool_indices=torch.tensor([1, 2, 3]),
        seq_lens=torch.tensor([15, 1, 7]),
        seq_lens_cpu=torch.tensor([15, 1, 7]),
        out_cache_loc=torch.arange(ROWS),
        seq_lens_sum=23,
        extend_seq_lens=torch.tensor(LENGTHS),
        extend_seq_lens_cpu=list(LENGTHS),
    )
    positions = torch.cat([torch.arange(10, 15), torch.arange(1), torch.arange(7)])
    return positions, batch, torch.randn(ROWS, WIDTH), torch.randn(ROWS, LAYERS, PLE)


def test_rows_that_are_sampled_from_are_sglangs_and_the_others_are_zero(made, backend):
    model, seen = made
    positions, batch, embeds, raw = inputs()
    wanted = SGLANGS(model, None, positions, batch, embeds.clone(), raw)
    seen.clear()
    found = forward(model, None, positions, batch, embeds, raw, FIRST, as_decode, {})
    torch.testing.assert_close(found[LAST], wanted[LAST])
    assert found.shape == wanted.shape
    assert set(range(ROWS)) - set(found.abs().sum(-1).nonzero().flatten().tolist()) == set(range(ROWS)) - set(LAST)
    assert [rows for _, rows, *_ in seen] == [ROWS] * FIRST + [len(LENGTHS)] * (LAYERS - FIRST)
    assert [mode for _, _, mode, *_ in seen] == [ForwardMode.EXTEND] * FIRST + [ForwardMode.DECODE] * (LAYERS - FIRST)
    assert seen[-1][3] == [14, 0, 6]
    assert seen[0][-1] is backend
    assert seen[-1][-1] is not backend
    assert seen[-1][-1].forward_metadata.cache_seqlens_int32.tolist() == [15, 1, 7]


def test_it_is_planned_before_any_layer_is_launched(made, backend):
    """A plan may wait for the device; in the midst of a forward it would wait for the layers before it."""
    model, seen = made
    launched = []

    def plan(*arguments):
        launched.append(len(seen))
        return as_decode(*arguments)

    forward(model, None, *inputs(), FIRST, plan, {})
    assert launched == [0]
    assert len(seen) == LAYERS


def test_per_layer_inputs_are_made_of_what_is_read_alone(made, backend, monkeypatch):
    """They are made of the owners for every row, of the shared layers for the rows that are left."""
    model, _ = made
    products, linear = [], torch.nn.functional.linear

    def counted(rows, weight, *more):
        products.append((tuple(rows.shape), tuple(weight.shape)))
        return linear(rows, weight, *more)

    monkeypatch.setattr(torch.nn.functional, "linear", counted)
    forward(model, None, *inputs(), FIRST, as_decode, {})
    assert products == [((ROWS, WIDTH), (FIRST * PLE, WIDTH)), ((3, WIDTH), ((LAYERS - FIRST) * PLE, WIDTH))]


def test_the_published_form_keeps_the_write_locations_of_all_tokens(made, backend):
    """The fault: everything else is that of one row per request. This backend reads by page, and answers right."""
    model, seen = made
    positions, batch, embeds, raw = inputs()
    wanted = SGLANGS(model, None, positions, batch, embeds.clone(), raw)
    seen.clear()
    given, view = as_extend(batch, torch.tensor(LAST), positions[LAST], None)
    assert (given.forward_mode, given.out_cache_loc.shape) == (ForwardMode.EXTEND, (ROWS,))
    assert (given.extend_seq_lens.tolist(), given.extend_seq_lens_cpu) == ([1, 1, 1], [1, 1, 1])
    assert (given.extend_prefix_lens.tolist(), given.extend_prefix_lens_cpu) == ([14, 0, 6], [14, 0, 6])
    assert (view.forward_metadata.cu_seqlens_q.tolist(), backend.forward_metadata) == ([0, 1, 2, 3], "the prefill's")
    found = forward(model, None, positions, batch, embeds, raw, FIRST, as_extend, {})
    torch.testing.assert_close(found[LAST], wanted[LAST])


def test_nothing_is_left_changed(made, backend):
    model, _ = made
    positions, batch, embeds, raw = inputs()
    before = dict(vars(batch))
    forward(model, None, positions, batch, embeds, raw, FIRST, as_decode, {})
    assert all(vars(batch)[name] is value for name, value in before.items())
    assert get_attn_backend() is backend
    assert backend.forward_metadata == "the prefill's"


def test_an_exception_in_a_shared_layer_leaves_the_backend_in_force(made, backend):
    model, _ = made
    positions, batch, embeds, raw = inputs()

    def fail(**_):
        raise RuntimeError("broken")

    fail.self_attn = SimpleNamespace(sliding_window=None)
    model.layers[FIRST] = fail
    with pytest.raises(RuntimeError, match="broken"):
        forward(model, None, positions, batch, embeds, raw, FIRST, as_decode, {})
    assert get_attn_backend() is backend


def test_a_chunk_that_is_not_the_last_runs_the_owners_alone(made, backend):
    model, seen = made
    positions, batch, embeds, raw = inputs()
    found = forward(model, None, positions, batch, embeds, raw, FIRST, None, {})
    assert found.shape == embeds.shape
    assert not found.any()
    assert [number for number, *_ in seen] == list(range(FIRST))
    assert all(row[-1] is backend for row in seen)


def test_a_projection_that_cannot_be_narrowed_is_run_whole(made, backend):
    model, _ = made
    positions, batch, embeds, raw = inputs()
    wanted = SGLANGS(model, None, positions, batch, embeds.clone(), raw)
    model.per_layer_model_projection.quant_method = object()
    found = forward(model, None, positions, batch, embeds, raw, FIRST, as_decode, {})
    torch.testing.assert_close(found[LAST], wanted[LAST])
