"""`routed-experts` around a layer's experts: what it takes, what stays SGLang's, and which plan it has."""

from types import SimpleNamespace

import pytest
import torch
from sglang.srt.layers.moe.moe_runner.base import MoeRunnerConfig
from sglang.srt.layers.moe.utils import MoeRunnerBackend
from sglang.srt.layers.quantization.unquant import UnquantizedFusedMoEMethod

from gemma4_kernels.routed_experts.reference import routed_experts as reference
from gemma4_kernels.routed_experts.spec import ANY_PLAN, MAX_ROWS, Plan
from gemma4_kernels.routed_experts.tuned import tables, tuned_plans
from gemma4_runtime.fusion import eligible
from gemma4_runtime.fusion.paths import FUSED, PATHS
from gemma4_runtime.optimisations import routed_experts as patch

# routed-experts is not ported.
pytestmark = pytest.mark.releases("0.5.13.post1")

HIDDEN, WIDTH, EXPERTS, TOP_K = 64, 48, 8, 2


class Rows(torch.Tensor):
    """A tensor of the CPU that says it is of a GPU: what is decided, not what is computed, is tested here."""

    is_cuda = True


class Experts(torch.nn.Module):
    """What SGLang's FusedMoE has that the patch reads; its own forward gives the rows back."""

    def __init__(self, **config):
        super().__init__()
        self.quant_method = UnquantizedFusedMoEMethod.__new__(UnquantizedFusedMoEMethod)
        self.quant_method.runner = SimpleNamespace(runner_backend=MoeRunnerBackend.TRITON)
        self.moe_runner_config = MoeRunnerConfig(**({"activation": "gelu"} | config))
        self.moe_tp_size = self.moe_ep_size = 1
        self.w13_weight = torch.nn.Parameter(torch.randn(EXPERTS, 2 * WIDTH, HIDDEN, dtype=torch.bfloat16) * 0.1)
        self.w2_weight = torch.nn.Parameter(torch.randn(EXPERTS, HIDDEN, WIDTH, dtype=torch.bfloat16) * 0.1)

    def forward(self, hidden_states, topk_output):
        return hidden_states


@pytest.fixture
def taken(monkeypatch):
    """Return what a call gave back and its path, on a GPU of which a plan for 1 to 4 rows was measured."""
    asked = SimpleNamespace(enable_deterministic_inference=False, rl_on_policy_target=None)
    monkeypatch.setattr(eligible, "settled", lambda _: asked)
    monkeypatch.setattr(eligible, "get_global_server_args", lambda: asked)
    monkeypatch.setattr(patch, "switched_on", lambda op: op == "routed-experts")
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device=None: "Some GPU")
    plans = (None, *[ANY_PLAN] * 4, *[None] * 4)
    known = {("Some GPU", HIDDEN, WIDTH, EXPERTS, TOP_K): plans}
    monkeypatch.setattr(patch, "tuned_plans", lambda *key: known.get(key))
    # A kernel cannot read what only says that it is of a GPU.
    monkeypatch.setattr(patch, "routed_experts", lambda x, *given: reference(x.as_subclass(torch.Tensor), *given[:-1]))
    monkeypatch.setattr("gemma4_runtime.fusion.paths.current.note_path", lambda *given: None)
    PATHS.__init__()

    def run(experts, rows=3, dtype=torch.bfloat16, **changed):
        patch.after_moe_init(None, SimpleNamespace(experts=experts))
        x = torch.randn(rows, HIDDEN).to(dtype).as_subclass(Rows)
        ids = torch.stack([torch.randperm(EXPERTS)[:TOP_K] for _ in range(rows)]).int() if rows else torch.zeros(0, 2)
        given = {"topk_weights": torch.rand(rows, TOP_K), "topk_ids": ids} | changed
        made = experts(x, SimpleNamespace(**given))
        paths = PATHS.document().get("routed-experts", {})
        PATHS.__init__()
        return x, given, made, list(paths)

    yield run
    PATHS.__init__()


def test_few_rows_are_ours(taken):
    experts = Experts()
    x, given, made, paths = taken(experts)
    assert paths == [FUSED]
    weights = experts.w13_weight, experts.w2_weight
    assert torch.equal(made, reference(x.as_subclass(torch.Tensor), *weights, *given.values()))


def test_other_numbers_of_rows_are_sglangs(taken):
    for rows in (0, MAX_ROWS + 1):
        x, _, made, paths = taken(Experts(), rows)
        assert made is x
        assert paths == []
    x, _, made, paths = taken(Experts(), 5)
    assert made is x
    assert paths == ["SGLang's own kernels are as fast"]


def spread(experts):
    experts.moe_ep_size = 2


def quantised(experts):
    experts.quant_method = torch.nn.Module()


def another_runner(experts):
    experts.quant_method.runner.runner_backend = MoeRunnerBackend.TRITON_KERNELS


def a_bias(experts):
    experts.w2_weight_bias = torch.zeros(EXPERTS, HIDDEN)


def turned(experts):
    experts.w13_weight = torch.nn.Parameter(experts.w13_weight.data.transpose(1, 2).contiguous())


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (spread, "spread over ranks"),
        (quantised, "quantised"),
        (another_runner, "not computed by SGLang's Triton kernels"),
        (a_bias, "a bias"),
        (turned, "lie otherwise"),
    ],
)
def test_layers_that_are_sglangs(taken, change, reason):
    experts = Experts()
    change(experts)
    x, _, made, (path,) = taken(experts)
    assert made is x
    assert reason in path


@pytest.mark.parametrize(
    "config",
    [
        {"activation": "silu"},
        {"is_gated": False},
        {"apply_router_weight_on_input": True},
        {"routed_scaling_factor": 2.5},
        {"gemm1_alpha": 1.7},
    ],
    ids=str,
)
def test_sums_of_another_kind_are_sglangs(taken, config):
    x, _, made, (path,) = taken(Experts(**config))
    assert made is x
    assert path.startswith("experts ")


def test_choices_and_rows_that_are_sglangs(taken):
    assert "int32 ids" in taken(Experts(), topk_ids=torch.zeros(3, TOP_K, dtype=torch.int64))[3][0]
    assert "rows' dtype" in taken(Experts(), dtype=torch.float32)[3][0]
    one = torch.zeros(3, 1, dtype=torch.int32)
    assert "no plan was measured" in taken(Experts(), topk_ids=one, topk_weights=torch.ones(3, 1))[3][0]


def test_the_committed_plans_are_of_26b_on_one_gpu():
    plans = tuned_plans("NVIDIA H200", 2816, 704, 128, 8)
    assert all(isinstance(plan, Plan) for plan in plans[1:5])
    assert plans[0] is plans[8] is None
    assert tuned_plans("NVIDIA H200", 2816, 705, 128, 8) is None
    assert list(tables()) == [("NVIDIA H200", "bfloat16")]
