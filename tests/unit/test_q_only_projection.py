"""SGLang's own attention layers of toy-e4b, whose last two read other layers' keys: what they project, and when all."""

import os
import subprocess
import sys
from contextlib import ExitStack

import pytest
import torch
from sglang.srt.layers.quantization.unquant import UnquantizedLinearMethod
from sglang.srt.lora.layers import BaseLayerWithLoRA
from sglang.srt.models.gemma4_causal import Gemma4Attention
from sglang.srt.plugins.hook_registry import HookRegistry
from sglang.srt.server_args import get_global_server_args

import vision_world
from gemma4_repro.toys.locate import toy_path
from gemma4_runtime.catalog import CATALOG
from gemma4_runtime.fusion import eligible
from gemma4_runtime.fusion.paths import FUSED, PATHS
from gemma4_runtime.fusion.projection import OP, project
from gemma4_runtime.session import Session
from gemma4_runtime.settings import read_settings

# q-only-projection is not ported.
pytestmark = pytest.mark.releases("0.5.13.post1")

OWNER, SLIDING, FULL = 0, 6, 7
TOKENS, WIDTH = 5, 64


@pytest.fixture(scope="module")
def rank():
    with ExitStack() as stack:
        yield stack.enter_context(vision_world.one_rank(toy_path("toy-e4b")))


@pytest.fixture
def layers(rank):
    """Return the attention of each layer; `seen` of one is what its kernels were called with."""
    found = [layer.self_attn for layer in vision_world.load_model(rank).language_model.layers]
    for attention in found:
        stub = Attend()
        attention.attn, attention.seen = stub, stub.seen
        for norm in (attention.q_norm, attention.k_norm, attention.v_norm, attention.rotary_emb):
            # Where there is a GPU, SGLang's are for that.
            norm._forward_method = norm.forward_native
    return found


class Attend(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.seen = []

    def forward(self, q, k, v, forward_batch, save_kv_cache):
        self.seen.append((q, k, v, save_kv_cache))
        return q.flatten(-2)


@pytest.fixture
def start(monkeypatch, tmp_path):
    """Starts a session with these patches, on what counts as the host engine; the last one is stopped in the end."""
    monkeypatch.setenv("SGLANG_TRTLLM_MHA_DEBUG_DIR", str(tmp_path))
    monkeypatch.setattr(eligible, "on_host_engine", lambda: True)
    started = []

    def begin(*ids):
        PATHS.__init__()
        session = Session(read_settings(), tuple(patch for patch in CATALOG if patch.id in ids))
        session.start()
        started.append(session)
        HookRegistry.apply_hooks()
        return session

    yield begin
    for session in started:
        session.stop()
    PATHS.__init__()


@torch.no_grad()
def forward(attention):
    """(output, q, k, v) of the same five rows."""
    hidden = torch.randn(TOKENS, WIDTH, generator=torch.Generator().manual_seed(3))
    attention.seen.clear()
    output = attention(torch.tensor([30, 0, 7, 8, 9]), hidden, None)
    return output, *attention.seen[0][:3]


def calls_of(attention):
    """Appended to at each call of the layer's whole projection."""
    calls = []
    attention.qkv_proj.register_forward_hook(lambda *_: calls.append(1))
    return calls


def paths():
    return PATHS.document().get(OP, {})


@pytest.mark.parametrize("ids", [(OP,), (OP, "qk-norm-rope")], ids="+".join)
@pytest.mark.parametrize("layer", [SLIDING, FULL])
def test_a_layer_that_shares_keys_projects_queries_alone(layers, start, layer, ids):
    plain = forward(layers[layer])
    start(*ids)
    calls = calls_of(layers[layer])
    found = forward(layers[layer])
    for ours, theirs in zip(found, plain, strict=True):
        assert (ours is None) == (theirs is None)
        if ours is not None:
            torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)
    assert plain[0].abs().mean() > 0.01
    assert calls == []
    assert paths() == {FUSED: 1}


def test_a_layer_that_owns_its_keys_is_as_it_was_and_not_recorded(layers, start):
    plain = forward(layers[OWNER])
    start(OP)
    calls = calls_of(layers[OWNER])
    found = forward(layers[OWNER])
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(found, plain, strict=True))
    assert calls == [1]
    assert paths() == {}


def test_the_weight_is_the_layers_own_storage(layers, start):
    """Whatever writes new weights into it, or puts others in its place, counts at the next forward."""
    start(OP)
    attention = layers[FULL]
    before = project(attention, torch.ones(1, WIDTH)).q
    with torch.no_grad():
        attention.qkv_proj.weight.mul_(2)
    torch.testing.assert_close(project(attention, torch.ones(1, WIDTH)).q, 2 * before)
    attention.qkv_proj.weight.data = -attention.qkv_proj.weight.data
    torch.testing.assert_close(project(attention, torch.ones(1, WIDTH)).q, -2 * before)


def test_a_bias_is_the_queries_part_of_it(layers, start):
    attention = layers[SLIDING]
    attention.qkv_proj.bias = torch.nn.Parameter(torch.randn(attention.qkv_proj.weight.shape[0]), requires_grad=False)
    plain = forward(attention)
    start(OP)
    torch.testing.assert_close(forward(attention)[1], plain[1], rtol=1e-5, atol=1e-5)
    assert paths() == {FUSED: 1}


class Quantised(UnquantizedLinearMethod):
    """Some method whose weight is not what the product is of."""


class Packed(torch.Tensor):
    """Some tensor that only says that it is a weight."""


def quantised(attention):
    attention.qkv_proj.quant_method = Quantised()


def packed_tensor(attention):
    weight = torch.Tensor._make_subclass(Packed, attention.qkv_proj.weight.data)
    del attention.qkv_proj.weight
    attention.qkv_proj.weight = weight


def with_lora(attention):
    # What wraps a projection of Q, K and V, but for the pinned memory that needs a GPU.
    attention.qkv_proj = BaseLayerWithLoRA(attention.qkv_proj, None)


def for_amx(attention):
    # Its packed product is not there on every CPU: only the question is asked of it.
    attention.qkv_proj.use_intel_amx_backend = True
    attention.qkv_proj.quant_method.apply = lambda layer, x, bias: torch.nn.functional.linear(x, layer.weight, bias)


def without_its_bias(attention):
    attention.qkv_proj.skip_bias_add = True


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (quantised, "a projection quantised by Quantised"),
        (packed_tensor, "a projection's weight of the type Packed"),
        (with_lora, "a projection of the type BaseLayerWithLoRA"),
        (for_amx, "a projection's weight that is packed for AMX"),
        (without_its_bias, "a projection that leaves its bias to others"),
    ],
)
def test_what_is_no_plain_product_is_projected_whole(layers, start, change, reason):
    attention = layers[SLIDING]
    change(attention)
    plain = forward(attention)
    start(OP)
    calls = calls_of(attention)
    assert all(torch.equal(a, b) for a, b in zip(forward(attention)[:2], plain[:2], strict=True))
    forward(attention)
    assert calls == [1, 1]
    assert paths() == {reason: 2}


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [("enable_deterministic_inference", True, "deterministic"), ("rl_on_policy_target", "fsdp", "trainer")],
)
def test_a_server_that_must_have_sglangs_arithmetic(layers, start, monkeypatch, name, value, reason):
    monkeypatch.setattr(get_global_server_args(), name, value)
    plain = forward(layers[FULL])
    start(OP)
    assert torch.equal(forward(layers[FULL])[0], plain[0])
    ((why, count),) = paths().items()
    assert reason in why
    assert count == 1


def test_switched_off_and_stopped_it_is_sglangs_own(layers, start):
    own, plain = Gemma4Attention.forward.__code__, forward(layers[FULL])
    session = start(OP)
    assert Gemma4Attention.forward.__code__ is not own
    session.in_force.ids = frozenset()
    calls = calls_of(layers[FULL])
    assert torch.equal(forward(layers[FULL])[0], plain[0])
    session.stop()
    assert Gemma4Attention.forward.__code__ is own
    assert torch.equal(forward(layers[FULL])[0], plain[0])
    assert calls == [1, 1]
    assert paths() == {}


def test_a_draft_model_that_learns_later_that_it_reads_the_targets_keys(layers, start):
    start(OP)
    attention = layers[OWNER]
    assert project(attention, torch.ones(1, WIDTH)).k is not None
    attention.is_kv_shared_layer, attention.kv_shared_layer_index = True, 0
    assert project(attention, torch.ones(1, WIDTH))[1:] == (None, None)


# The tests' own process has Dynamo switched off.
TRACED = """
import torch
from sglang.srt.plugins.hook_registry import HookRegistry
import vision_world
from gemma4_repro.toys.locate import toy_path
from gemma4_runtime.catalog import CATALOG
from gemma4_runtime.fusion import eligible
from gemma4_runtime.fusion.paths import PATHS
from gemma4_runtime.session import Session
from gemma4_runtime.settings import read_settings

class Attend(torch.nn.Module):
    def forward(self, q, k, v, forward_batch, save_kv_cache):
        return q.flatten(-2)

eligible.on_host_engine = lambda: True
with vision_world.one_rank(toy_path("toy-e4b")) as config, torch.no_grad():
    shared = vision_world.load_model(config).language_model.layers[7].self_attn
    shared.attn = Attend()
    given = torch.arange(5), torch.randn(5, 64), None
    plain = shared(*given)
    session = Session(read_settings(), tuple(patch for patch in CATALOG if patch.id == "q-only-projection"))
    session.start()
    HookRegistry.apply_hooks()
    traced = torch.compile(shared, fullgraph=True, backend="aot_eager", dynamic=True)
    # The layer is asked for the first time within the trace.
    torch.testing.assert_close(traced(*given), plain, rtol=1e-5, atol=1e-5)
    shared.qkv_proj.weight.neg_()
    torch.testing.assert_close(traced(*given), -plain, rtol=1e-5, atol=1e-5)
    assert PATHS.document() == {"q-only-projection": {"fused": 2}}, PATHS.document()
    session.stop()
"""


@pytest.mark.slow
def test_it_can_be_traced_whole(tmp_path):
    environment = {name: value for name, value in os.environ.items() if name != "TORCHDYNAMO_DISABLE"}
    environment |= {"PYTHONPATH": os.pathsep.join(sys.path), "SGLANG_TRTLLM_MHA_DEBUG_DIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", TRACED], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
