"""`layer-tail` in SGLang's own layers of toy-e4b: what is one launch there, and when a layer is taken op by op."""

from contextlib import ExitStack

import pytest
import torch
from sglang.srt.layers.linear import ReplicatedLinear

import vision_world
from gemma4_repro.toys.locate import toy_path
from gemma4_runtime.fusion.paths import PATHS, REFERENCE
from gemma4_runtime.fusion.tail import OP
from gemma4_runtime.optimisations.next_norms import after_text_model_init
from text_layers import calls_of, sessions, text_model

# No layer op is ported: 0.5.23's layers go through layers/layer_boundary.
pytestmark = pytest.mark.releases("0.5.13.post1")

PARTS = ("post-attention-norms", "rmsnorm-add", "gelu-tanh-mul", "cross-layer-norm")
ELSEWHERE = ("qk-norm-rope", "small-m-linear", "streamed-products")
ALL = (*PARTS, *ELSEWHERE, OP)


@pytest.fixture(scope="module")
def rank():
    with ExitStack() as stack:
        yield stack.enter_context(vision_world.one_rank(toy_path("toy-e4b")))


@pytest.fixture
def model(rank):
    return text_model(rank)


@pytest.fixture
def start(monkeypatch, tmp_path, model):
    """Starts a session with these patches."""
    with sessions(monkeypatch, tmp_path, model, lambda: after_text_model_init(None, model)) as begin:
        yield begin


@torch.no_grad()
def forward(model, rows=3):
    """Return the normed hidden states [rows, H] behind all layers."""
    generator = torch.Generator().manual_seed(5)
    hidden = torch.randn(rows, model.config.hidden_size, generator=generator)
    ple = torch.randn(rows, len(model.layers), model.config.hidden_size_per_layer_input, generator=generator)
    positions = torch.arange(rows)
    for number, layer in enumerate(model.layers):
        hidden, _ = layer(positions=positions, hidden_states=hidden, per_layer_input=ple[:, number], forward_batch=None)
    return model.norm(hidden)


def paths():
    return PATHS.document().get(OP, {})


def test_every_layer_is_one_launch_with_the_next_projection(model, start):
    plain = forward(model)
    start(*ALL)
    projections = [calls_of(layer.self_attn.qkv_proj) for layer in model.layers]
    ends = [calls_of(layer.self_attn.o_proj) for layer in model.layers]
    torch.testing.assert_close(forward(model), plain, rtol=1e-4, atol=1e-4)
    assert plain.std() > 0.3
    assert paths() == {REFERENCE: len(model.layers)}
    # Only the first layer's is nobody's to compute ahead of it.
    assert [len(calls) for calls in projections] == [1, *[0] * (len(model.layers) - 1)]
    assert not any(ends)
    assert "cross-layer-norm" not in PATHS.document()


def test_with_queries_alone_projected_the_next_layer_has_no_keys(model, start):
    plain = forward(model)
    start(*ALL, "q-only-projection")
    torch.testing.assert_close(forward(model), plain, rtol=1e-4, atol=1e-4)
    shared = sum(layer.self_attn.is_kv_shared_layer for layer in model.layers)
    assert shared > 0
    assert PATHS.document()["q-only-projection"] == {"fused": shared}


@pytest.mark.parametrize(("ids", "rows"), [(ALL[:-1], 3), (ALL, 9)], ids=["without it", "more rows"])
def test_nothing_is_recorded(model, start, ids, rows):
    start(*ids)
    forward(model, rows)
    assert paths() == {}


@pytest.mark.parametrize("missing", ALL[:-1])
def test_what_it_takes_the_place_of_has_to_be_in_force(model, start, missing):
    plain = forward(model)
    start(*(op for op in ALL if op != missing))
    torch.testing.assert_close(forward(model), plain, rtol=1e-4, atol=1e-4)
    assert set(paths()) == {f"without {missing}"}


def test_a_row_that_is_asked_of_an_attention_that_projects_all_the_same(model, start, monkeypatch):
    plain = forward(model)
    start(*ALL)
    # SGLang's own forward runs where qk-norm-rope does not take a layer.
    monkeypatch.setattr("gemma4_runtime.optimisations.qk_norm_rope._layer_reason", lambda attention: "another rotation")
    torch.testing.assert_close(forward(model), plain, rtol=1e-4, atol=1e-4)
    assert paths() == {}


def test_rows_of_another_dtype_are_projected_as_without_it(model, start, monkeypatch):
    plain = forward(model)
    start(*ALL)
    monkeypatch.setattr("gemma4_runtime.fusion.tail.LayerTail.reads", lambda tail, attended: False)
    torch.testing.assert_close(forward(model), plain, rtol=1e-4, atol=1e-4)
    assert paths() == {}


def watch(layer):
    layer.mlp.down_proj.register_forward_hook(lambda *_: None)


def another_linear(layer):
    class Wrapped(ReplicatedLinear):
        """Stand in for a linear layer that LoRA wraps."""

    layer.per_layer_projection.__class__ = Wrapped


def another_norm(layer):
    layer.post_feedforward_layernorm.variance_epsilon *= 2


def shared_among_ranks(layer):
    layer.mlp.down_proj.tp_size = 2


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (watch, "a module of the layer that hooks watch"),
        (another_linear, "a Wrapped that is not a plain product"),
        (another_norm, "norms with different eps"),
        (shared_among_ranks, "products that several ranks share"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_layer_that_is_not_plain_is_taken_op_by_op(model, start, change, why):
    change(model.layers[2])
    plain = forward(model)
    start(*ALL)
    torch.testing.assert_close(forward(model), plain, rtol=1e-4, atol=1e-4)
    assert paths() == {REFERENCE: len(model.layers) - 1, why: 1}


def test_a_watched_projection_is_left_to_its_own_layer(model, start):
    plain = forward(model)
    seen = []
    model.layers[3].self_attn.qkv_proj.register_forward_hook(lambda *_: seen.append(1))
    start(*ALL)
    torch.testing.assert_close(forward(model), plain, rtol=1e-4, atol=1e-4)
    assert paths() == {REFERENCE: len(model.layers)}
    assert seen == [1]


def test_a_server_that_must_have_sglangs_arithmetic(model, start, monkeypatch):
    plain = forward(model)
    start(*ALL)
    why = "rl_on_policy_target asks for the trainer's norms"
    monkeypatch.setattr("gemma4_runtime.fusion.layer_plan.server_reason", lambda: why)
    torch.testing.assert_close(forward(model), plain, rtol=1e-4, atol=1e-4)
    assert paths() == {}
    assert PATHS.document()["rmsnorm-add"] == {why: len(model.layers)}
