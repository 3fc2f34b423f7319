"""`small-m-linear` in SGLang's own linear layers: which products it takes, and what stays SGLang's to the bit."""

from contextlib import ExitStack

import pytest
import torch
from sglang.srt.layers.activation import GeluAndMul
from sglang.srt.layers.linear import ReplicatedLinear
from sglang.srt.layers.quantization.unquant import UnquantizedLinearMethod
from sglang.srt.models.gemma3_causal import Gemma3MLP
from sglang.srt.plugins.hook_registry import HookRegistry
from sglang.srt.server_args import get_global_server_args

import vision_world
from gemma4_kernels.small_m_linear.spec import MAX_ROWS, Plan, StreamedPlan
from gemma4_repro.toys.locate import toy_path
from gemma4_runtime.catalog import CATALOG
from gemma4_runtime.fusion import eligible, ops, small_linear
from gemma4_runtime.fusion.paths import FUSED, PATHS
from gemma4_runtime.fusion.small_linear import OP, STREAMED
from gemma4_runtime.session import Session
from gemma4_runtime.settings import read_settings

# small-m-linear is not ported.
pytestmark = pytest.mark.releases("0.5.13.post1")

DEPTH, COLUMNS = 64, 96
PLAN = Plan(16, 16, 64, 1, 3, 2, False)


@pytest.fixture(scope="module")
def rank():
    with ExitStack() as stack:
        yield stack.enter_context(vision_world.one_rank(toy_path("toy-e4b")))


@pytest.fixture
def layer(rank):
    return make_layer()


def make_layer(**arguments):
    layer = ReplicatedLinear(DEPTH, COLUMNS, **{"bias": False, "params_dtype": torch.float32} | arguments)
    for seed, parameter in enumerate(layer.parameters()):
        parameter.data.normal_(generator=torch.Generator().manual_seed(seed))
    return layer


@pytest.fixture
def table(monkeypatch):
    """Yield a table of this CPU: of one size, up to 8 rows ours and above that cuBLAS."""
    plans = (None, *[PLAN] * 8, *[None] * (MAX_ROWS - 8))
    monkeypatch.setattr(small_linear, "tables", lambda: {("cpu", "float32"): {}})
    monkeypatch.setattr(small_linear, "tuned_plans", lambda gpu, dtype, n, k: plans if (n, k) == (96, 64) else None)
    small_linear._plans_or_reason.cache_clear()
    yield
    small_linear._plans_or_reason.cache_clear()


@pytest.fixture
def calls(monkeypatch):
    """Return the (x, weight, plan) of each product of ours; its result is marked by its sign."""
    seen = []

    def product(x, weight, plan):
        seen.append((x, weight, plan))
        return -(x @ weight.T)

    monkeypatch.setattr(small_linear, "small_m_linear", product)
    return seen


@pytest.fixture
def start(monkeypatch, tmp_path):
    """Starts a session with these patches, on what counts as the host engine."""
    monkeypatch.setenv("SGLANG_TRTLLM_MHA_DEBUG_DIR", str(tmp_path))
    monkeypatch.setattr(eligible, "on_host_engine", lambda: True)
    with ExitStack() as stack:

        def begin(*ids):
            PATHS.__init__()
            session = Session(read_settings(), tuple(patch for patch in CATALOG if patch.id in ids))
            session.start()
            stack.callback(session.stop)
            HookRegistry.apply_hooks()
            return session

        yield begin
    PATHS.__init__()


def rows(count, depth=DEPTH):
    return torch.randn(count, depth, generator=torch.Generator().manual_seed(9))


def paths():
    return PATHS.document().get(OP, {})


def test_a_product_of_the_table_is_ours_and_counted(layer, table, calls, start):
    plain = layer(rows(3))[0]
    start(OP)
    assert torch.equal(layer(rows(3))[0], -plain)
    ((_, weight, plan),) = calls
    assert weight is layer.weight
    assert plan == PLAN
    assert paths() == {FUSED: 1}


def test_the_kernels_own_path_is_the_product(layer, table, start):
    plain = layer(rows(3))[0]
    start(OP)
    torch.testing.assert_close(layer(rows(3))[0], plain, rtol=1e-5, atol=1e-5)
    assert paths() == {FUSED: 1}


@pytest.mark.parametrize(
    ("x", "why"),
    [
        (rows(MAX_ROWS + 1), None),
        (rows(0), None),
        (rows(6).view(2, 3, DEPTH), None),
        (rows(9), "cuBLAS is as fast"),
        (rows(DEPTH)[:3].T.contiguous().T, "hidden states of 2 dimensions, torch.float32"),
    ],
    ids=["prefill", "no-rows", "three-dimensions", "no-gain", "stride"],
)
def test_other_rows_are_sglangs_own(layer, table, calls, start, x, why):
    plain = layer(x)[0]
    start(OP)
    assert torch.equal(layer(x)[0], plain)
    assert calls == []
    assert paths() == ({why: 1} if why else {})


STREAM = StreamedPlan(64, 2, 1, 4, 1)


@pytest.fixture
def streams(monkeypatch):
    """Yield a table of streamed plans of this CPU, of one size and up to 4 rows, as if it could run them."""
    plans = (None, *[STREAM] * 4, *[None] * (MAX_ROWS - 4))
    monkeypatch.setattr(small_linear, "unavailable", lambda device: None)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "cpu")
    monkeypatch.setattr(small_linear, "_streamed_plans", lambda gpu, dtype, n, k: plans if (n, k) == (96, 64) else None)
    monkeypatch.setattr(small_linear, "fits", lambda x, weight: x.stride(0) % 8 == 0)


def test_a_product_of_the_streamed_table_is_streamed_and_counted(layer, table, streams, calls, start):
    start(OP, STREAMED)
    layer(rows(4))
    layer(rows(5))
    layer(rows(4, DEPTH + 1)[:, :DEPTH])
    assert [plan for _, _, plan in calls] == [STREAM, PLAN, PLAN]
    assert paths() == {FUSED: 3}
    assert PATHS.document()[STREAMED] == {
        FUSED: 1,
        "small-m-linear or cuBLAS is as fast, or nobody measured": 1,
        "rows that are not bf16 at multiples of 16 bytes": 1,
    }


def test_without_the_patch_or_the_device_nothing_is_streamed(layer, table, calls, start, streams, monkeypatch):
    session = start(OP, STREAMED)
    session.in_force.ids = frozenset({OP})
    layer(rows(4))
    assert STREAMED not in PATHS.document()
    session.in_force.ids = frozenset({OP, STREAMED})
    monkeypatch.setattr(small_linear, "unavailable", lambda device: "cuda.bindings is not installed")
    layer(rows(4))
    assert PATHS.document()[STREAMED] == {"cuda.bindings is not installed": 1}
    assert [plan for _, _, plan in calls] == [PLAN, PLAN]


class OtherMethod(UnquantizedLinearMethod):
    pass


class OtherWeight(torch.nn.Parameter):
    pass


def give_other_weight(layer):
    layer.weight = OtherWeight(layer.weight.data, requires_grad=False)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda layer: setattr(layer, "quant_method", OtherMethod()), None),
        (give_other_weight, "a weight of the type OtherWeight"),
    ],
    ids=["another-method", "another-weight"],
)
def test_other_layers_are_sglangs_own(layer, table, calls, start, change, why):
    change(layer)
    plain = layer(rows(3))[0]
    start(OP)
    assert torch.equal(layer(rows(3))[0], plain)
    assert calls == []
    assert paths() == ({why: 1} if why else {})


def test_a_bias_is_sglangs_own(rank, table, calls, start):
    layer = make_layer(bias=True)
    plain = layer(rows(3))[0]
    start(OP)
    assert torch.equal(layer(rows(3))[0], plain)
    assert (calls, paths()) == ([], {})


def test_a_size_that_was_not_measured_is_sglangs_own_and_says_so(rank, table, calls, start):
    layer = ReplicatedLinear(DEPTH, 32, bias=False, params_dtype=torch.float32)
    start(OP)
    layer(rows(3))
    assert (calls, paths()) == ([], {"no plan was measured for a weight of [32, 64]": 1})


def test_a_device_that_was_not_measured_is_one_reason_for_all_sizes(layer, calls, start):
    small_linear._plans_or_reason.cache_clear()
    start(OP)
    layer(rows(3))
    ReplicatedLinear(DEPTH, 32, bias=False, params_dtype=torch.float32)(rows(3))
    assert (calls, paths()) == ([], {"no plan was measured on cpu with float32": 2})


def test_deterministic_inference_is_sglangs_own(layer, table, calls, start, monkeypatch):
    start(OP)
    monkeypatch.setattr(get_global_server_args(), "enable_deterministic_inference", True)
    layer(rows(3))
    assert calls == []
    assert list(paths()) == ["deterministic inference: SGLang's batch-invariant norms"]


def test_what_is_traced_is_sglangs_own(layer, table, calls, start, monkeypatch):
    start(OP)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    layer(rows(3))
    assert calls == []


def test_switched_off_it_is_gone(layer, table, calls, start):
    session = start(OP)
    session.in_force.ids = frozenset()
    layer(rows(3))
    assert (calls, paths()) == ([], {})


def test_queries_alone_are_a_product_too(layer, table, calls, start, monkeypatch):
    monkeypatch.setattr(small_linear, "tuned_plans", lambda gpu, dtype, n, k: (PLAN,) * 17 if n == 48 else None)
    whole = layer.weight
    plain = ops.q_only_projection(rows(3), whole, None, 48)
    start(OP)
    assert torch.equal(ops.q_only_projection(rows(3), whole, None, 48), -plain)
    assert calls[0][1].data_ptr() == whole.data_ptr()
    bias = torch.ones(COLUMNS)
    assert torch.equal(ops.q_only_projection(rows(3), whole, bias, 48), plain + 1)
    assert paths() == {FUSED: 1}


@pytest.fixture
def mlp(rank):
    mlp = Gemma3MLP(DEPTH, COLUMNS // 2, "gelu_pytorch_tanh")
    for seed, parameter in enumerate(mlp.parameters()):
        parameter.data = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(seed)) / 8
    return mlp


def test_an_mlps_gate_is_part_of_its_product(mlp, table, start):
    plain = mlp.act_fn.forward_native(mlp.gate_up_proj(rows(3))[0])
    start(OP)
    made = small_linear.gated_mlp_input(mlp, rows(3))
    torch.testing.assert_close(made, plain, rtol=1e-5, atol=1e-5)
    assert paths() == {FUSED: 1}


def test_a_per_layer_embeddings_gate_is_part_of_its_product(layer, table, start):
    factor = torch.randn(3, 4, COLUMNS)[:, 2]
    plain = torch.nn.functional.gelu(layer(rows(3))[0], approximate="tanh") * factor
    start(OP)
    torch.testing.assert_close(small_linear.gelu_mul(layer, rows(3), factor), plain, rtol=1e-5, atol=1e-5)
    assert paths() == {FUSED: 1}


class OtherMlp(Gemma3MLP):
    pass


def give_other_gate(mlp):
    mlp.act_fn = GeluAndMul(approximate="none")


@pytest.mark.parametrize(
    "change",
    [
        lambda mlp: setattr(mlp, "__class__", OtherMlp),
        give_other_gate,
        lambda mlp: setattr(mlp.gate_up_proj, "gather_output", True),
        lambda mlp: setattr(mlp.gate_up_proj, "quant_method", OtherMethod()),
        lambda mlp: setattr(mlp.gate_up_proj, "bias", torch.nn.Parameter(torch.ones(COLUMNS))),
        lambda mlp: mlp.register_forward_hook(lambda *_: None),
        lambda mlp: mlp.act_fn.register_forward_pre_hook(lambda *_: None),
    ],
    ids=["another-class", "another-gate", "gathered", "another-method", "bias", "hook", "hook-of-the-gate"],
)
def test_another_mlp_computes_its_own_gate(mlp, table, start, change):
    change(mlp)
    start(OP)
    assert small_linear.gated_mlp_input(mlp, rows(3)) is None
    assert paths() == {}


def test_gates_of_prefills_traces_and_sizes_without_a_plan_are_sglangs_own(mlp, layer, table, start, monkeypatch):
    session = start(OP)
    assert small_linear.gated_mlp_input(mlp, rows(MAX_ROWS + 1)) is None
    assert small_linear.gelu_mul(layer, rows(9), torch.ones(9, COLUMNS)) is None
    assert paths() == {"cuBLAS is as fast": 1}
    for factor in (torch.ones(3, 1), torch.ones(3, COLUMNS).half(), torch.ones(COLUMNS, 3).T, torch.ones(COLUMNS)):
        assert small_linear.gelu_mul(layer, rows(3), factor) is None
    session.in_force.ids = frozenset()
    assert small_linear.gated_mlp_input(mlp, rows(3)) is None
    session.in_force.ids = frozenset({OP})
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    assert small_linear.gelu_mul(layer, rows(3), torch.ones(3, COLUMNS)) is None
