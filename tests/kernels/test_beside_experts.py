"""beside_experts against fp64 and against the ops one by one: sizes, plans, hard numbers, equal bits, refusals."""

import importlib
import itertools
import json
from pathlib import Path

import pytest
import torch
from kernel_paths import DEVICE, PATHS, cases_here, needs_kernel

from gemma4_kernels.beside_experts import launch, spec
from gemma4_kernels.beside_experts.launch import dense_beside_experts
from gemma4_kernels.beside_experts.spec import ANY_PLAN, FOLDER, Weights, plan_of
from gemma4_kernels.beside_experts.tuned import Size, tuned_plans
from gemma4_kernels.routed_experts.launch import routed_experts
from gemma4_kernels.routed_experts.spec import Plan as ExpertsPlan
from gemma4_kernels.routing.launch import routing
from gemma4_kernels.small_m_linear.launch import small_m_geglu, small_m_linear
from gemma4_kernels.small_m_linear.spec import Plan as ProductPlan

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "kernels" / "bench" / "rows").glob("beside_experts_*.json"))
# Triton's interpreter cuts bf16 off instead of rounding it.
DTYPES = (torch.float32, torch.float16) + ((torch.bfloat16,) if DEVICE == "cuda" else ())
PLANS = (
    ANY_PLAN,
    ANY_PLAN._replace(dense_first=False, first_ahead=2, dense_ahead=9),
    plan_of(
        ProductPlan(8, 32, 16, 1, 3, 1, False),
        ExpertsPlan(8, 64, 16, 3, 4, 32, 16, 2, 4, 2),
        ProductPlan(8, 16, 32, 1, 3, 4, False),
        dense_first=False,
    ),
    plan_of(
        ProductPlan(8, 16, 64, 1, 4, 4, False),
        ExpertsPlan(1, 32, 32, 3, 4, 16, 16, 2, 3, 4),
        ProductPlan(8, 64, 16, 1, 1, 4, False),
    ),
)
OF_ONE_ROW = (
    plan_of(
        ProductPlan(1, 8, 64, 1, 3, 4, False),
        ExpertsPlan(8, 16, 32, 3, 1, 32, 16, 2, 3, 1),
        ProductPlan(1, 4, 32, 1, 1, 1, False),
    ),
    plan_of(
        ProductPlan(1, 32, 32, 1, 1, 4, False),
        ExpertsPlan(1, 16, 32, 1, 4, 16, 32, 1, 1, 4),
        ProductPlan(1, 8, 16, 1, 2, 4, False),
        dense_first=False,
    ),
)
by_path = pytest.mark.parametrize("path", PATHS)
by_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: str(dtype).removeprefix("torch."))


def by_plan(plans):
    return pytest.mark.parametrize("plan", plans, ids=lambda plan: "-".join(str(int(number)) for number in plan))


def draw(*shape, dtype=torch.float32, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE, dtype)


def inputs(rows, top_k, experts, hidden, width, dense_width, dtype=torch.float32, seed=0):
    """Return the inputs of dense MLP, router and experts, the weights and top_k."""

    def matrix(*shape, seed):
        return draw(*shape, dtype=dtype, seed=seed) * shape[-1] ** -0.5

    weights = Weights(
        matrix(2 * dense_width, hidden, seed=seed + 1),
        matrix(hidden, dense_width, seed=seed + 2),
        # Logits far from each other: which experts are chosen must not hang on the last bit.
        matrix(experts, hidden, seed=seed + 3) * 4,
        1 + 0.1 * draw(experts, seed=seed + 4),
        matrix(experts, 2 * width, hidden, seed=seed + 5),
        matrix(experts, hidden, width, seed=seed + 6),
    )
    return *(draw(rows, hidden, dtype=dtype, seed=seed + number) for number in (7, 8, 9)), weights, top_k


def expected(dense_x, router_x, experts_x, weights, top_k, logits):
    """Return both sums and the magnitudes that were added, in fp64; rounded where the kernels round."""
    dtype = dense_x.dtype
    gate, up = (dense_x.double() @ weights.gate_up.double().T).to(dtype).double().chunk(2, 1)
    gated = (torch.nn.functional.gelu(gate, approximate="tanh") * up).to(dtype).double()
    down = weights.down.double()
    dense = gated @ down.T, (gate.abs() * up.abs()) @ down.abs().T
    sums, added = (torch.zeros(experts_x.shape, dtype=torch.float64, device=DEVICE) for _ in range(2))
    chosen, ids = (one[:, :top_k] for one in logits.double().sort(dim=1, descending=True, stable=True))
    shares = chosen.softmax(1) * weights.per_expert_scale.double()[ids]
    for row, place in itertools.product(*map(range, ids.shape)):
        expert, share = int(ids[row, place]), shares[row, place]
        product = (weights.experts_gate_up[expert].double() @ experts_x[row].double()).to(dtype).double()
        gate, up = product.chunk(2)
        gated = (torch.nn.functional.gelu(gate) * up).to(dtype).double()
        down = weights.experts_down[expert].double()
        sums[row] += share * (down @ gated)
        added[row] += share.abs() * (down.abs() @ (gate.abs() * up.abs()))
    return dense, (sums, added)


def assert_right(found, *given, plan=ANY_PLAN, path="auto"):
    """Hold every element to the spec's share of the magnitudes that were added.

    Logits are those of the same cut: of two that are near each other a rounding says which expert is chosen.
    """
    _, router_x, _, weights, _ = given
    logits = small_m_linear(router_x, weights.router, plan.first, path=path)
    exact = router_x.double() @ weights.router.double().T
    assert (
        (logits.double() - exact).abs() <= 2**-6 * (router_x.double().abs() @ weights.router.double().abs().T)
    ).all()
    for name, made, (wanted, added) in zip(found._fields, found, expected(*given, logits), strict=True):
        assert made.dtype is router_x.dtype
        assert made.shape == wanted.shape
        limit = spec.TOLERANCES[str(made.dtype).removeprefix("torch.")].relative
        assert ((made.double() - wanted).abs() <= limit * added + torch.finfo(made.dtype).tiny).all(), name


def one_by_one(dense_x, router_x, experts_x, weights, top_k, plan):
    """Return what the ops make of it in a launch each, cut likewise."""
    gated = small_m_geglu(dense_x, weights.gate_up, plan.first, path="kernel")
    logits = small_m_linear(router_x, weights.router, plan.first, path="kernel")
    shares, ids = routing(logits, weights.per_expert_scale, top_k, path="kernel")
    of_experts = weights.experts_gate_up, weights.experts_down
    return (
        small_m_linear(gated, weights.down, plan.dense, path="kernel"),
        routed_experts(experts_x, *of_experts, shares, ids, plan.experts, path="kernel"),
    )


def same_bits(one, other):
    return all(torch.equal(a.view(torch.uint8), b.view(torch.uint8)) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("case", cases_here(spec.CASES))
@by_dtype
@by_path
def test_sizes(path, dtype, case):
    given = inputs(*case[1:7], dtype=dtype)
    assert_right(dense_beside_experts(*given, path=path), *given, path=path)


@pytest.mark.sampled(3)
@needs_kernel
@by_plan(PLANS)
@by_dtype
def test_every_way_to_cut_has_the_bits_of_the_ops_one_by_one(plan, dtype):
    for size in ((3, 2, 3, 45, 19, 51), (2, 2, 4, 64, 32, 48)):
        given = inputs(*size, dtype=dtype)
        found = dense_beside_experts(*given, plan, path="kernel")
        assert_right(found, *given, plan=plan, path="kernel")
        assert same_bits(found, one_by_one(*given, plan))


@needs_kernel
@by_plan(OF_ONE_ROW)
@by_dtype
def test_a_single_row_that_is_multiplied_and_added(plan, dtype):
    for size in ((1, 2, 3, 45, 19, 51), (1, 2, 4, 64, 32, 48)):
        given = inputs(*size, dtype=dtype)
        found = dense_beside_experts(*given, plan, path="kernel")
        assert_right(found, *given, plan=plan, path="kernel")
        assert same_bits(found, one_by_one(*given, plan))


@pytest.mark.sampled(3)
@needs_kernel
@by_plan(PLANS)
def test_a_row_has_the_same_bits_each_time_and_whatever_the_other_rows_are(plan):
    given = inputs(4, 2, 5, 45, 19, 51)
    first = dense_beside_experts(*given, plan, path="kernel")
    for _ in range(1 if DEVICE == "cpu" else 100):
        assert same_bits(dense_beside_experts(*given, plan, path="kernel"), first)
    for rows in ([3], [1, 2, 0]):
        some = *(x[rows] for x in given[:3]), *given[3:]
        assert same_bits(dense_beside_experts(*some, plan, path="kernel"), [one[rows] for one in first])


@needs_kernel
@by_plan(PLANS)
def test_what_is_no_number_stays_with_its_rows(plan):
    dense_x, router_x, experts_x, weights, top_k = given = inputs(4, 2, 8, 32, 32, 48)
    plain = dense_beside_experts(*given, plan, path="kernel")
    dense_x, experts_x = dense_x.clone(), experts_x.clone()
    dense_x[0, 5], experts_x[1, 3] = torch.nan, torch.inf
    found = dense_beside_experts(dense_x, router_x, experts_x, weights, top_k, plan, path="kernel")
    assert found.dense[0].isnan().all()
    assert not found.experts[1].isfinite().any()
    assert torch.equal(found.dense[1:], plain.dense[1:])
    assert torch.equal(found.experts[[0, 2, 3]], plain.experts[[0, 2, 3]])


@needs_kernel
@by_plan(PLANS[1:3])
def test_a_router_without_an_answer_spoils_the_experts_of_its_row_alone(plan):
    dense_x, router_x, experts_x, weights, top_k = given = inputs(3, 2, 8, 32, 32, 48)
    plain = dense_beside_experts(*given, plan, path="kernel")
    router_x = router_x.clone()
    router_x[1] = torch.nan
    found = dense_beside_experts(dense_x, router_x, experts_x, weights, top_k, plan, path="kernel")
    assert torch.equal(found.dense, plain.dense)
    assert found.experts[1].isnan().all()
    assert torch.equal(found.experts[[0, 2]], plain.experts[[0, 2]])


@needs_kernel
@by_plan((PLANS[1], OF_ONE_ROW[0]))
def test_rows_and_weights_that_lie_apart(plan):
    """And what is between them is not read: it is not finite."""
    rows = plan.first_m if plan.first_m == 1 else 2
    *rows_of, weights, top_k = given = inputs(rows, 2, 4, 45, 19, 51)

    def apart(tensor):
        around = torch.full((tensor.shape[0], 2, *tensor.shape[1:]), torch.nan, device=DEVICE)
        around[:, 1] = tensor
        return around[:, 1]

    spread = Weights(*(one if one.dim() == 1 else apart(one) for one in weights))
    found = dense_beside_experts(*map(apart, rows_of), spread, top_k, plan, path="kernel")
    assert same_bits(found, dense_beside_experts(*given, plan, path="kernel"))


@by_dtype
@by_path
def test_large_gates(path, dtype):
    dense_x, router_x, experts_x, weights, top_k = inputs(3, 2, 4, 64, 32, 48, dtype=dtype)
    weights = weights._replace(gate_up=weights.gate_up * 8, experts_gate_up=weights.experts_gate_up * 8)
    given = dense_x, router_x, experts_x, weights, top_k
    assert_right(dense_beside_experts(*given, path=path), *given, path=path)


@pytest.mark.skipif(DEVICE == "cpu", reason="a launch is known again on CUDA alone")
def test_a_call_like_one_before_is_known():
    given = inputs(3, 2, 4, 64, 32, 48, dtype=torch.bfloat16)
    first = dense_beside_experts(*given)
    before = len(launch._FIRST._launches), len(launch._LAST._launches)
    other = inputs(3, 2, 4, 64, 32, 48, dtype=torch.bfloat16, seed=40)
    assert_right(dense_beside_experts(*other), *other)
    assert same_bits(dense_beside_experts(*given), first)
    assert (len(launch._FIRST._launches), len(launch._LAST._launches)) == before


def test_what_is_refused():
    dense_x, router_x, experts_x, weights, top_k = inputs(2, 2, 4, 64, 32, 48)
    rows = dense_x, router_x, experts_x

    def with_weight(**changed):
        return *rows, weights._replace(**changed), top_k

    wrong = {
        "dense_x is": (*(torch.zeros(9, 64, device=DEVICE) for _ in range(3)), weights, top_k),
        "router_x is": (dense_x, router_x[:1], experts_x, weights, top_k),
        "gate_up is torch.float32": (dense_x, router_x, experts_x.half(), weights, top_k),
        "gated is torch.float32": (
            *(dense_x, router_x, experts_x.half()),
            weights._replace(experts_gate_up=weights.experts_gate_up.half(), experts_down=weights.experts_down.half()),
            top_k,
        ),
        r"ids is \[2, 2\], expected \[1, k\]": (dense_x, router_x, experts_x[:1], weights, top_k),
        "dense_x has stride": (draw(64, 2).T, router_x, experts_x, weights, top_k),
        "x has stride": (dense_x, router_x, draw(64, 2).T, weights, top_k),
        "an even number of rows": with_weight(gate_up=weights.gate_up[1:]),
        r"weight is \[64, 48\]": with_weight(gate_up=weights.gate_up[2:]),
        r"down is \[63": with_weight(down=weights.down[1:]),
        r"weight is \[4, 63\]": with_weight(router=weights.router[:, 1:]),
        "weight is torch.float16": with_weight(router=weights.router.half()),
        "weight has stride": with_weight(router=draw(64, 4).T),
        r"per_expert_scale is \[3\]": with_weight(per_expert_scale=weights.per_expert_scale[1:]),
        r"gate_up is \[4, 63": with_weight(experts_gate_up=weights.experts_gate_up[:, 1:]),
        "top_k is 5": (*rows, weights, 5),
        "top_k is 0": (*rows, weights, 0),
    }
    for message, given in wrong.items():
        with pytest.raises(ValueError, match=message):
            dense_beside_experts(*given)


@needs_kernel
def test_plans_that_do_not_fit_are_refused():
    given = inputs(2, 2, 4, 64, 32, 48)
    for change in ({"first_m": 1}, {"first_m": 4}, {"dense_m": 1}, {"block_m": 16}, {"down_splits": 2}):
        with pytest.raises(ValueError, match="the plan"):
            dense_beside_experts(*given, ANY_PLAN._replace(**change), path="kernel")


def test_what_nobody_measured_has_no_plan():
    assert tuned_plans("another", Size(2816, 2112, 704, 128, 8)) is None
    assert tuned_plans("NVIDIA H200", Size(2816, 2112, 705, 128, 8)) is None


def bench(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "kernels" / "bench"))
    return importlib.import_module("bench_beside_experts")


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_table_is_made_of_the_rows(file, monkeypatch):
    """If this fails, run: python kernels/bench/bench_beside_experts.py --table FILE."""
    made, document = bench(monkeypatch), json.loads(file.read_text())
    assert (FOLDER / made.table_name(document)).read_text() == made.table_text(document, file)


def test_a_table_names_a_plan_where_a_layer_gains_by_it(monkeypatch):
    """Against the faster of the other ways, by three percent at least."""
    size = Size(2816, 2112, 704, 128, 8)

    def row(rows, ours, **others):
        us = {name.replace("_", "-"): {"median": took} for name, took in ({"ours": ours} | others).items()}
        return size._asdict() | {"rows": rows, "us": us, "plan": list(ANY_PLAN)}

    found = [
        row(1, 97.0, one_by_one=100.0, norms_wait=90.0),
        row(2, 97.1, one_by_one=100.0),
        row(8, 97.0, one_by_one=110.0, sglang_experts=99.0),
    ]
    kept = dict.fromkeys(("gpu", "versions", "dtype", "date", "command"), "")
    text = bench(monkeypatch).table_text(kept | {"gain": 0.97, "rows": found}, Path("rows.json"))
    (entry,) = json.loads(text)["entries"]
    assert entry == size._asdict() | {"plans": {"1": list(ANY_PLAN), "2": None, "8": None}}
