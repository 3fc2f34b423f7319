"""routed_experts against fp64: sizes, plans, shared experts, hard numbers, ids that are none, equal bits each time."""

import itertools

import pytest
import torch
from kernel_paths import DEVICE, PATHS, cases_here, needs_kernel

from gemma4_kernels.routed_experts import spec
from gemma4_kernels.routed_experts.launch import routed_experts
from gemma4_kernels.routed_experts.spec import ANY_PLAN, Plan

# Triton's interpreter cuts bf16 off instead of rounding it.
DTYPES = (torch.float32, torch.float16) + ((torch.bfloat16,) if DEVICE == "cuda" else ())
PLANS = (
    ANY_PLAN,
    Plan(1, 16, 32, 1, 4, 16, 32, 1, 1, 4),
    Plan(1, 32, 32, 3, 4, 16, 16, 2, 3, 4),
    Plan(8, 16, 32, 3, 2, 32, 16, 1, 3, 2),
    Plan(8, 64, 16, 3, 4, 32, 16, 2, 4, 2),
    Plan(8, 32, 64, 4, 1, 16, 32, 1, 4, 1),
)
by_plan = pytest.mark.parametrize("plan", PLANS, ids=lambda plan: "-".join(map(str, plan)))
by_path = pytest.mark.parametrize("path", PATHS)
by_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: str(dtype).removeprefix("torch."))


def draw(*shape, dtype=torch.float32, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE, dtype)


def inputs(rows, top_k, experts, hidden, width, dtype=torch.float32, seed=0):
    """Return x, gate_up, down, shares and ids."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.stack([torch.randperm(experts, generator=generator)[:top_k] for _ in range(max(rows, 1))])[:rows]
    gate_up = draw(experts, 2 * width, hidden, dtype=dtype, seed=seed + 1) * hidden**-0.5
    down = draw(experts, hidden, width, dtype=dtype, seed=seed + 2) * width**-0.5
    shares = draw(rows, top_k, seed=seed + 3).softmax(1) if rows else draw(rows, top_k)
    return draw(rows, hidden, dtype=dtype, seed=seed), gate_up, down, shares, ids.to(DEVICE, torch.int32)


def expected(x, gate_up, down, shares, ids):
    """Return the sum and the magnitudes that were added, in fp64; rounded where the kernel rounds."""
    out, added = (torch.zeros(x.shape, dtype=torch.float64, device=DEVICE) for _ in range(2))
    for row, place in itertools.product(*map(range, ids.shape)):
        expert = int(ids[row, place])
        if not 0 <= expert < len(gate_up):
            continue
        product = (gate_up[expert].double() @ x[row].double()).to(x.dtype).double()
        gate, up = product.chunk(2)
        gated = (torch.nn.functional.gelu(gate) * up).to(x.dtype).double()
        share = shares[row, place].double()
        out[row] += share * (down[expert].double() @ gated)
        added[row] += share.abs() * (down[expert].double().abs() @ (gate.abs() * up.abs()))
    return out, added


def assert_right(found, *given):
    """Hold every element to the spec's share of the magnitudes that were added."""
    out, added = expected(*given)
    limit = spec.TOLERANCES[str(found.dtype).removeprefix("torch.")].relative
    assert ((found.double() - out).abs() <= limit * added + torch.finfo(found.dtype).tiny).all()


@pytest.mark.parametrize("case", cases_here(spec.CASES))
@by_dtype
@by_path
def test_sizes(path, dtype, case):
    given = inputs(*case[1:6], dtype=dtype)
    found = routed_experts(*given, path=path)
    assert found.shape == given[0].shape
    assert found.dtype is dtype
    assert_right(found, *given)


@pytest.mark.sampled(3)
@needs_kernel
@by_plan
@by_dtype
def test_every_way_to_cut(plan, dtype):
    for rows, top_k, experts, hidden, width in ((3, 2, 3, 45, 19), (2, 2, 4, 64, 32)):
        given = inputs(rows, top_k, experts, hidden, width, dtype=dtype)
        assert_right(routed_experts(*given, plan, path="kernel"), *given)


@pytest.mark.sampled(3)
@needs_kernel
@by_plan
def test_a_row_has_the_same_bits_each_time_and_whatever_the_other_rows_are(plan):
    given = inputs(4, 2, 5, 45, 19)
    first = routed_experts(*given, plan, path="kernel")
    for _ in range(1 if DEVICE == "cpu" else 100):
        assert torch.equal(routed_experts(*given, plan, path="kernel"), first)
    x, gate_up, down, shares, ids = given
    for rows in ([3], [1, 2, 0]):
        some = x[rows], gate_up, down, shares[rows].contiguous(), ids[rows].contiguous()
        assert torch.equal(routed_experts(*some, plan, path="kernel"), first[rows])


@pytest.mark.sampled(3)
@by_path
def test_ids_that_are_none_take_no_part(path):
    x, gate_up, down, shares, ids = inputs(4, 3, 8, 32, 32)
    gate_up[0], down[0] = torch.inf, torch.nan
    ids[:] = torch.tensor([[1, -1, 2], [-1, 8, 2**31 - 1], [3, 4, 5], [7, 1, -1]])
    for plan in (None,) if path == "torch" else PLANS:
        found = routed_experts(x, gate_up, down, shares, ids, plan, path=path)
        assert_right(found, x, gate_up, down, shares, ids)
        assert not found[1].any()


@needs_kernel
@by_plan
def test_what_is_no_number_stays_with_the_rows_that_chose_it(plan):
    x, gate_up, down, shares, ids = inputs(4, 2, 8, 32, 32)
    ids[:] = torch.tensor([[0, 1], [2, 3], [3, 4], [1, 5]])
    plain = routed_experts(x, gate_up, down, shares, ids, plan, path="kernel")
    x[0, 5], gate_up[4, 7, 3], down[4, 9, 2] = torch.nan, torch.inf, torch.nan
    found = routed_experts(x, gate_up, down, shares, ids, plan, path="kernel")
    assert found[0].isnan().all()
    assert found[2, 9].isnan()
    assert torch.equal(found[[1, 3]], plain[[1, 3]])


@by_dtype
@by_path
def test_large_gates_and_sums_that_cancel(path, dtype):
    x, gate_up, down, shares, ids = inputs(3, 2, 2, 64, 32, dtype=dtype)
    gate_up, shares = gate_up * 8, shares.clone()
    down[1], gate_up[1] = -down[0], gate_up[0]
    shares[:] = 0.5
    ids[:] = torch.tensor([0, 1])
    found = routed_experts(x, gate_up, down, shares, ids, path=path)
    assert not found.any()


@needs_kernel
@pytest.mark.parametrize("plan", [PLANS[1], PLANS[3]], ids=["apart", "grouped"])
def test_rows_and_experts_that_lie_apart(plan):
    """And what is between them is not read: it is not finite."""
    x, gate_up, down, shares, ids = given = inputs(2, 2, 4, 45, 19)
    around = [torch.full((one.shape[0], 2, *one.shape[1:]), torch.nan, device=DEVICE) for one in (x, gate_up, down)]
    for one, tensor in zip(around, (x, gate_up, down), strict=True):
        one[:, 1] = tensor
    found = routed_experts(*(one[:, 1] for one in around), shares, ids, plan, path="kernel")
    assert torch.equal(found, routed_experts(*given, plan, path="kernel"))


def test_what_is_refused():
    x, gate_up, down, shares, ids = good = inputs(2, 2, 4, 64, 32)
    wrong = {
        "x is": (torch.zeros(9, 64), *good[1:]),
        "down is": (x, gate_up, down[:, :63], shares, ids),
        "gate_up is": (x, gate_up[:, :63], down, shares, ids),
        "gate_up is torch.float16": (x, gate_up.half(), down, shares, ids),
        "x has stride": (draw(64, 2).T, *good[1:]),
        "ids is": (x, gate_up, down, shares, ids[:1]),
        "ids is .* torch.int64": (x, gate_up, down, shares, ids.long()),
        "shares is": (x, gate_up, down, shares.half(), ids),
        "ids has strides": (x, gate_up, down, shares, ids.T.contiguous().T),
        "at most 64": (x, gate_up, down, draw(2, 33), torch.zeros(2, 33, dtype=torch.int32)),
    }
    for message, given in wrong.items():
        with pytest.raises(ValueError, match=message):
            routed_experts(*(one.to(DEVICE) for one in given))


@needs_kernel
def test_plans_that_do_not_fit_are_refused():
    given = inputs(2, 2, 4, 64, 32)
    for plan in (ANY_PLAN._replace(block_m=16), ANY_PLAN._replace(down_splits=2), ANY_PLAN._replace(down_splits=0)):
        with pytest.raises(ValueError, match="the plan"):
            routed_experts(*given, plan, path="kernel")
