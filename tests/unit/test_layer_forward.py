"""Our forward of a layer against SGLang's own, op by op, with weights that no toy has: scalars that are not 1."""

from types import SimpleNamespace

import pytest
import torch
from sglang.srt import server_args
from sglang.srt.layers.layernorm import Gemma4RMSNorm, RMSNorm
from sglang.srt.models.gemma4_causal import Gemma4DecoderLayer

from gemma4_runtime.catalog import CATALOG
from gemma4_runtime.fusion import eligible
from gemma4_runtime.fusion.carried_norm import CarriedNorm
from gemma4_runtime.fusion.layer_plan import LAYER_OPS, forget_plan, plan_of, set_next_norm
from gemma4_runtime.fusion.paths import PATHS
from gemma4_runtime.optimisations.layer_forward import around_layer_forward
from gemma4_runtime.optimisations.next_norms import after_text_model_init
from gemma4_runtime.session import Session
from gemma4_runtime.settings import read_settings

# No layer op is ported: 0.5.23's layers go through layers/layer_boundary.
pytestmark = pytest.mark.releases("0.5.13.post1")

# Before any session hooks it; taken off again, a session gives this name back too.
SGLANGS = Gemma4DecoderLayer.forward
WIDTH, EXPERTS, PLE = 16, 4, 8
KINDS = {"dense": {"post-attention-norms", "rmsnorm-residual-scalar", "cross-layer-norm"}}
KINDS["ple"] = KINDS["dense"] | {"rmsnorm-add", "gelu-tanh-mul"}
KINDS["experts"] = {"triple-rmsnorm", "cross-layer-norm"}


def draw(*shape):
    return torch.randn(*shape)


def norm(kind=RMSNorm, **more):
    made = kind(WIDTH, eps=1e-6, **more)
    if getattr(made, "with_scale", True):
        made.weight.data = draw(WIDTH)
    # Where there is a GPU, SGLang's norms are for that.
    made._forward_method = made.forward_native
    return made


class Router:
    """Gemma4Router's arithmetic, without the fold."""

    def __init__(self):
        self.norm, self.scale, matrix = norm(Gemma4RMSNorm, with_scale=False), draw(WIDTH), draw(WIDTH, EXPERTS)
        self.proj = lambda rows: (rows @ matrix, None)

    def __call__(self, rows):
        return self.proj(self.norm(rows) * self.scale * WIDTH**-0.5)[0]


def matrix(rows, columns):
    values = draw(rows, columns) * rows**-0.5
    return lambda x: x @ values


def layer_of(kind):
    """Say what Gemma4DecoderLayer.forward reads of a layer: real norms, and matrices for attention, MLP and experts."""
    ple, experts = kind == "ple", kind == "experts"
    attention, experts_in, experts_mix = matrix(WIDTH, WIDTH), matrix(WIDTH, WIDTH), matrix(EXPERTS, WIDTH)
    gate, projection = matrix(WIDTH, PLE), matrix(PLE, WIDTH)
    return SimpleNamespace(
        self_attn=lambda positions, hidden_states, forward_batch: attention(hidden_states),
        mlp=matrix(WIDTH, WIDTH),
        input_layernorm=norm(),
        post_attention_layernorm=norm(),
        pre_feedforward_layernorm=norm(),
        post_feedforward_layernorm=norm(),
        has_ple=ple,
        per_layer_input_gate=lambda x: (gate(x), None),
        per_layer_projection=lambda x: (projection(x), None),
        post_per_layer_input_norm=norm(Gemma4RMSNorm) if ple else None,
        enable_moe_block=experts,
        router=Router() if experts else None,
        moe=(lambda x, logits: experts_in(x) + experts_mix(logits.softmax(-1))) if experts else None,
        post_feedforward_layernorm_1=norm() if experts else None,
        post_feedforward_layernorm_2=norm() if experts else None,
        pre_feedforward_layernorm_2=norm() if experts else None,
        layer_scalar=torch.tensor([0.7]),
    )


@pytest.fixture
def turn_on(monkeypatch, tmp_path):
    """Have these ops in force, on what counts as the host engine."""
    monkeypatch.setenv("SGLANG_TRTLLM_MHA_DEBUG_DIR", str(tmp_path))
    monkeypatch.setattr(eligible, "on_host_engine", lambda: True)
    asked = SimpleNamespace(enable_deterministic_inference=False, rl_on_policy_target=None)
    monkeypatch.setattr(server_args, "_global_server_args", asked)
    session = Session(read_settings(), tuple(patch for patch in CATALOG if patch.id in LAYER_OPS))
    session.start()
    PATHS.__init__()

    def only(*ids):
        session.in_force.ids = frozenset(ids)
        return asked

    yield only
    session.stop()
    PATHS.__init__()


def ours(layer, hidden, ple):
    return around_layer_forward(SGLANGS, layer, None, hidden.clone(), ple, None)[0]


def sglangs(layer, hidden, ple):
    return SGLANGS(layer, None, hidden.clone(), ple, None)[0]


@pytest.mark.parametrize(
    ("kind", "ids"),
    [(kind, ids) for kind, has in KINDS.items() for ids in [*((one,) for one in sorted(has)), tuple(sorted(has))]],
)
def test_a_layer_computes_what_sglangs_does(turn_on, kind, ids):
    torch.manual_seed(0)
    layer, following, hidden = layer_of(kind), norm(), draw(5, WIDTH)
    set_next_norm(layer, CarriedNorm(following))
    for ple in (draw(5, PLE), None) if kind == "ple" else (None,):
        wanted = sglangs(layer, hidden, ple)
        turn_on(*ids)
        forget_plan(layer)
        found = ours(layer, hidden, ple)
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(following(found), following.forward_native(wanted), rtol=1e-4, atol=1e-5)
    taken = {"cross-layer-norm"} if "cross-layer-norm" in ids else set(ids)
    assert taken <= {op for op, paths in PATHS.document().items() if set(paths) == {"reference"}}


@pytest.mark.parametrize("kind", ["dense", "experts"])
def test_the_norm_behind_a_tail_is_computed_once(turn_on, kind):
    """The tail computes it. Logits are right without that too, only not sooner."""
    turn_on("cross-layer-norm")
    torch.manual_seed(0)
    layers, last, computed = [layer_of(kind) for _ in range(3)], norm(), []
    model = SimpleNamespace(
        config=SimpleNamespace(num_hidden_layers=3), start_layer=0, end_layer=3, layers=layers, norm=last
    )
    for name, one in enumerate([*(layer.input_layernorm for layer in layers), last]):
        one._forward_method = lambda *a, own=one.forward_native, name=name: computed.append(name) or own(*a)
    after_text_model_init(None, model)
    hidden = draw(5, WIDTH)
    for layer in layers:
        hidden = around_layer_forward(SGLANGS, layer, None, hidden, None, None)[0]
    torch.testing.assert_close(last(hidden), last.forward_native(hidden), rtol=1e-4, atol=1e-5)
    assert computed == [0]


def refused(layer):
    assert plan_of(layer).ops == frozenset()
    return {why for paths in PATHS.document().values() for why in paths}


class TestWhatALayerDoesNotTake:
    @pytest.mark.parametrize("kind", KINDS)
    def test_on_a_deterministic_server_nothing(self, turn_on, kind):
        turn_on(*LAYER_OPS).enable_deterministic_inference = True
        assert refused(layer_of(kind)) == {"deterministic inference: SGLang's batch-invariant norms"}

    def test_experts_and_per_layer_embeddings(self, turn_on):
        turn_on(*LAYER_OPS)
        layer = layer_of("experts")
        layer.has_ple, layer.post_per_layer_input_norm = True, norm(Gemma4RMSNorm)
        assert refused(layer) == {"a layer with experts and per-layer embeddings"}

    def test_a_router_with_a_weight_of_its_own(self, turn_on):
        turn_on(*LAYER_OPS)
        layer = layer_of("experts")
        layer.router.norm = norm(Gemma4RMSNorm)
        assert refused(layer) == {"a router norm with a learned weight"}

    def test_a_norm_that_adds_one_to_its_weight(self, turn_on):
        turn_on(*LAYER_OPS)
        layer = layer_of("ple")
        layer.post_per_layer_input_norm = norm(Gemma4RMSNorm, scale_shift=1.0)
        assert plan_of(layer).ops == {"post-attention-norms", "rmsnorm-add", "gelu-tanh-mul"}

    def test_tensors_that_are_not_alike(self, turn_on):
        turn_on("gelu-tanh-mul")
        torch.manual_seed(0)
        layer, hidden, ple = layer_of("ple"), draw(5, WIDTH), draw(5, PLE).double()
        layer.per_layer_projection = lambda x: (x[:, :1].float().expand(-1, WIDTH), None)
        assert torch.equal(ours(layer, hidden, ple), sglangs(layer, hidden, ple))
        assert {op: set(paths) for op, paths in PATHS.document().items()} == {
            "gelu-tanh-mul": {"tensors that are not alike"}
        }
