"""`dense-beside-experts` in SGLang's own layers of toy-26b: what is beside what there, and when it is op by op."""

from contextlib import ExitStack
from types import SimpleNamespace

import pytest
import torch
from sglang.srt.layers.linear import ReplicatedLinear
from sglang.srt.layers.moe.fused_moe_triton.layer import FusedMoE
from sglang.srt.layers.quantization.unquant import UnquantizedFusedMoEMethod
from sglang.srt.models.gemma4_causal import Gemma4Router

import vision_world
from gemma4_kernels.beside_experts.launch import gate_beside_router
from gemma4_kernels.beside_experts.spec import ANY_PLAN, MAX_ROWS
from gemma4_repro.toys.locate import toy_path
from gemma4_runtime.fusion import beside_experts
from gemma4_runtime.fusion.beside_experts import OP
from gemma4_runtime.fusion.paths import PATHS, REFERENCE
from gemma4_runtime.optimisations import moe_routing, routed_experts
from step_bench_parts import let_experts_run
from text_layers import calls_of, sessions, text_model

# No layer op is ported: 0.5.23's layers go through layers/layer_boundary.
pytestmark = pytest.mark.releases("0.5.13.post1")

LET_RUN = (
    (UnquantizedFusedMoEMethod, "forward_cpu"),
    (UnquantizedFusedMoEMethod, "forward_native"),
    (Gemma4Router, "forward"),
)
ALL = ("triple-rmsnorm", "routing", "small-m-linear", "routed-experts", OP)


@pytest.fixture(scope="module")
def rank():
    with ExitStack() as stack:
        yield stack.enter_context(vision_world.one_rank(toy_path("toy-26b")))


@pytest.fixture
def model(rank, monkeypatch):
    for owner, method in LET_RUN:
        # So that it is put back behind the test.
        monkeypatch.setattr(owner, method, getattr(owner, method))
    let_experts_run()
    return text_model(rank)


@pytest.fixture
def start(monkeypatch, tmp_path, model):
    """Starts a session with these patches, where 1 to 4 rows have a plan."""
    plans = (None, *[ANY_PLAN] * 4, *[None] * (MAX_ROWS - 4))
    monkeypatch.setattr(beside_experts, "tuned_plans", lambda gpu, size: plans if gpu == "cpu" else None)

    def renew():
        for layer in model.layers:
            moe_routing.after_moe_init(None, layer.moe)
            routed_experts.after_moe_init(None, layer.moe)

    with sessions(monkeypatch, tmp_path, model, renew) as begin:
        yield begin


@torch.no_grad()
def forward(model, rows=3):
    """Return the normed hidden states [rows, H] behind all layers."""
    hidden = torch.randn(rows, model.config.hidden_size, generator=torch.Generator().manual_seed(5))
    positions = torch.arange(rows)
    for layer in model.layers:
        hidden, _ = layer(positions=positions, hidden_states=hidden, per_layer_input=None, forward_batch=None)
    return model.norm(hidden)


def paths():
    return PATHS.document().get(OP, {})


def assert_same(found, plain):
    assert plain.std() > 0.3
    torch.testing.assert_close(found, plain, rtol=1e-3, atol=1e-3)


def test_every_layer_has_its_products_beside_each_other(model, start):
    start(*ALL[:-1])
    plain = forward(model)
    start(*ALL)
    single = [calls_of(one) for layer in model.layers for one in (layer.mlp.down_proj, layer.router.proj)]
    choices = [calls_of(layer.moe.topk) for layer in model.layers]
    assert_same(forward(model), plain)
    assert paths() == {REFERENCE: len(model.layers)}
    assert not any(single)
    # Experts are chosen by SGLang's own lines, with our routing in them.
    assert all(len(calls) == 1 for calls in choices)
    assert PATHS.document()["routing"] == {REFERENCE: len(model.layers)}


def test_it_is_what_sglangs_own_layers_make(model, start):
    plain = forward(model)
    start(*ALL)
    assert_same(forward(model), plain)


@pytest.mark.parametrize(
    ("ids", "rows"),
    [(ALL[:-1], 3), (ALL, MAX_ROWS + 1), (ALL[1:], 3)],
    ids=["without it", "more rows", "without the norms ahead"],
)
def test_nothing_is_recorded(model, start, ids, rows):
    start(*ids)
    forward(model, rows)
    assert paths() == {}


@pytest.mark.parametrize("missing", ALL[1:-1])
def test_what_it_takes_the_place_of_has_to_be_in_force(model, start, missing):
    plain = forward(model)
    start(*(op for op in ALL if op != missing))
    assert_same(forward(model), plain)
    assert set(paths()) == {f"without {missing}"}


def test_rows_without_a_plan_and_sizes_that_nobody_measured(model, start, monkeypatch):
    start(*ALL)
    forward(model, 5)
    assert set(paths()) == {"its ops one by one are as fast"}
    monkeypatch.setattr(beside_experts, "tuned_plans", lambda gpu, size: None)
    PATHS.__init__()
    forward(model)
    (why,) = paths()
    assert why.startswith("no plan was measured on cpu for ")


def watch(layer):
    layer.moe.register_forward_hook(lambda *_: None)


def another_linear(layer):
    class Wrapped(ReplicatedLinear):
        """Stand in for a linear layer that LoRA wraps."""

    layer.router.proj.__class__ = Wrapped


def other_experts(layer):
    class Wrapped(FusedMoE):
        """Stand in for experts that LoRA wraps."""

    layer.moe.experts.__class__ = Wrapped


def shared_among_ranks(layer):
    layer.mlp.down_proj.tp_size = 2


def experts_apart(layer):
    layer.moe.experts.moe_tp_size = 2
    layer.moe.experts.reduce_results = False


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (watch, "a module of the layer that hooks watch"),
        (another_linear, "a Wrapped that is not a plain product"),
        (other_experts, "a Wrapped that is not SGLang's plain experts"),
        (shared_among_ranks, "products that several ranks share"),
        (experts_apart, "experts that are spread over ranks"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_layer_that_is_not_plain_is_taken_op_by_op(model, start, change, why):
    plain = forward(model)
    change(model.layers[2])
    start(*ALL)
    assert_same(forward(model), plain)
    assert paths() == {REFERENCE: len(model.layers) - 1, why: 1}


def test_choices_that_no_kernel_reads_are_sglangs(model, start):
    plain = forward(model)
    start(*ALL)
    topk = model.layers[1].moe.topk
    own = topk.forward

    def wide(rows, logits):
        made = own(rows, logits)
        return made._replace(topk_ids=made.topk_ids.long())

    topk.forward = wide
    assert_same(forward(model), plain)
    why = "experts that are not chosen as int32 ids with fp32 weights"
    assert paths() == {REFERENCE: len(model.layers) - 1, why: 1}


def test_the_kernels_get_the_plan_of_the_table(model, start, monkeypatch):
    seen = []

    def note(*given):
        seen.append(given[-1])
        return gate_beside_router(*given)

    monkeypatch.setattr(beside_experts, "gate_beside_router", note)
    start(*ALL)
    forward(model, 2)
    assert seen == [ANY_PLAN] * len(model.layers)


def test_a_trace_is_left_to_sglang(model, start, monkeypatch):
    start(*ALL)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    assert beside_experts.beside_plan(SimpleNamespace(), torch.zeros(2, 8)) is None
