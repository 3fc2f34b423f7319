"""small_m_linear against fp64: sizes, layouts, hard numbers, what is no number, and the same bits each time."""

import pytest
import torch
from kernel_paths import DEVICE, PATHS, cases_here, needs_kernel

from gemma4_kernels.gelu_tanh_mul.launch import gelu_tanh_mul
from gemma4_kernels.small_m_linear import spec
from gemma4_kernels.small_m_linear.launch import any_plan, small_m_geglu, small_m_gelu_mul, small_m_linear
from gemma4_kernels.small_m_linear.spec import MAX_ROWS, Plan

# Triton's interpreter cuts bf16 off instead of rounding it.
DTYPES = (torch.float32, torch.float16) + ((torch.bfloat16,) if DEVICE == "cuda" else ())
PLANS = (
    Plan(1, 4, 64, 1, 3, 4, False),
    Plan(1, 8, 32, 1, 1, 4, True),
    Plan(1, 4, 32, 2, 3, 4, True),
    Plan(8, 16, 32, 1, 3, 2, True),
    Plan(8, 32, 32, 2, 3, 2, False),
    Plan(16, 16, 64, 1, 3, 2, False),
    Plan(16, 16, 16, 3, 4, 4, True),
    Plan(16, 64, 32, 2, 3, 4, False),
)
by_plan = pytest.mark.parametrize("plan", PLANS, ids=lambda plan: "-".join(map(str, map(int, plan))))
by_path = pytest.mark.parametrize("path", PATHS)
by_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: str(dtype).removeprefix("torch."))


def draw(*shape, dtype=torch.float32, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE, dtype)


def rows_of(plan):
    """Return as many as the plan holds and one fewer, for which some of what it holds is no row."""
    return {1: (1,), 8: (7, 8), 16: (9, 16)}[plan.block_m]


def assert_product(found, x, weight):
    """Hold every element to the spec's share of the magnitudes that were added."""
    x, weight = x.double(), weight.double()
    expected, added = x @ weight.T, x.abs() @ weight.abs().T
    limit = spec.TOLERANCES[str(found.dtype).removeprefix("torch.")].relative
    # fp16 has a smallest number.
    assert ((found.double() - expected).abs() <= limit * added + torch.finfo(found.dtype).tiny).all()


@pytest.mark.parametrize("case", cases_here(spec.CASES))
@by_dtype
@by_path
def test_sizes(path, dtype, case):
    x, weight = draw(case.rows, case.depth, dtype=dtype), draw(case.columns, case.depth, dtype=dtype, seed=1)
    out = torch.full((case.rows, case.columns), torch.nan, dtype=dtype, device=DEVICE)
    assert small_m_linear(x, weight, out=out, path=path) is out
    assert_product(out, x, weight)


@pytest.mark.sampled(5)
@needs_kernel
@by_plan
@by_dtype
def test_every_way_to_cut(plan, dtype):
    for rows in rows_of(plan):
        # 41 columns and a depth of 107 are no multiples of anything; 192 is whole blocks of each plan.
        for columns, depth in ((41, 107), (64, 192)):
            x, weight = draw(rows, depth, dtype=dtype), draw(columns, depth, dtype=dtype, seed=1)
            out = torch.full((rows, columns), torch.nan, dtype=dtype, device=DEVICE)
            assert_product(small_m_linear(x, weight, plan, out=out, path="kernel"), x, weight)


@by_dtype
@by_path
def test_magnitudes_that_fp16_does_not_reach_and_sums_that_cancel(path, dtype):
    scale = 2.0**6 if dtype is torch.float16 else 2.0**50
    half, weight = draw(4, 96, dtype=dtype) * scale, draw(33, 96, dtype=dtype, seed=1)
    x = torch.cat([half, -half], dim=1)
    small = torch.cat([weight, weight], dim=1) + draw(33, 192, dtype=dtype, seed=2) * 2**-8
    assert_product(small_m_linear(x, small, path=path), x, small)


@by_path
def test_a_sum_is_of_fp32(path):
    """In fp16, 2048 + 1 is 2048."""
    x, weight = torch.ones(2, 4096, device=DEVICE).half(), torch.ones(3, 4096, device=DEVICE).half()
    assert small_m_linear(x, weight, path=path).tolist() == [[4096.0] * 3] * 2


@by_path
def test_weights_of_zero_give_zero(path):
    out = small_m_linear(draw(3, 100), torch.zeros(17, 100, device=DEVICE), path=path)
    assert not out.any()


@pytest.mark.sampled(3)
@by_dtype
@pytest.mark.parametrize("plan", [None, *PLANS[3:]], ids=str)
@needs_kernel
def test_what_is_no_number_stays_in_its_row_and_column(plan, dtype):
    x, weight = draw(8, 192, dtype=dtype), draw(64, 192, dtype=dtype, seed=1)
    plain = small_m_linear(x, weight, plan, path="kernel")
    x[2, 5], x[4, 190] = torch.inf, torch.nan
    weight[7, 100], weight[63, 0] = -torch.inf, torch.nan
    found = small_m_linear(x, weight, plan, path="kernel")
    expected = x.double() @ weight.double().T
    assert torch.equal(found.isnan(), expected.isnan())
    assert torch.equal(found.isposinf(), expected.isposinf())
    assert torch.equal(found.isneginf(), expected.isneginf())
    finite = expected.isfinite()
    assert 300 < finite.sum() < 512
    assert torch.equal(found[finite], plain[finite])


@pytest.mark.sampled(2)
@needs_kernel
@by_plan
def test_rows_that_lie_apart(plan):
    """And what is between them is not read: it is not finite."""
    rows = rows_of(plan)[0]
    around = torch.full((rows, 3, 107), torch.nan, device=DEVICE)
    around_weight = torch.full((41, 2, 107), torch.nan, device=DEVICE)
    around_out = torch.full((rows, 2, 41), 7.0, device=DEVICE)
    x, weight, out = around[:, 1], around_weight[:, 0], around_out[:, 1]
    x.copy_(draw(rows, 107))
    weight.copy_(draw(41, 107, seed=1))
    small_m_linear(x, weight, plan, out=out, path="kernel")
    assert torch.equal(out, small_m_linear(x.contiguous(), weight.contiguous(), plan, path="kernel"))
    assert (around_out[:, 0] == 7).all()


@pytest.mark.sampled(3)
@needs_kernel
@by_plan
def test_the_same_bits_each_time_and_whatever_the_other_rows_are(plan):
    rows = rows_of(plan)[-1]
    x, weight = draw(rows, 107), draw(41, 107, seed=1)
    first = small_m_linear(x, weight, plan, path="kernel")
    for number in range(3 if DEVICE == "cpu" else 200):
        assert torch.equal(small_m_linear(x, weight, plan, path="kernel"), first), number
    alone = small_m_linear(x[-1:], weight, plan, path="kernel")
    assert torch.equal(alone[0], first[-1])


@needs_kernel
@by_plan
def test_nothing_beyond_the_last_weight_is_read(plan):
    """A row behind it would lie where this process has no memory: reading it ends the process."""
    x, weight = draw(1, 192), draw(1, 192, seed=1)
    far = weight.as_strided((1, 192), (1 << 44, 1))
    assert torch.equal(small_m_linear(x, far, plan, path="kernel"), small_m_linear(x, weight, plan, path="kernel"))


def gated(value):
    """Return gelu_tanh in fp64."""
    inner = (2 / torch.pi) ** 0.5 * (value + 0.044715 * value**3)
    return 0.5 * value * (1 + inner.tanh())


@by_dtype
@by_path
def test_gates_are_those_of_fp64(path, dtype):
    """Within what rounding the product and the result, and fp32's exponential, may take."""
    x, weight, factor = draw(7, 96, dtype=dtype), draw(66, 96, dtype=dtype, seed=1), draw(7, 66, dtype=dtype, seed=2)
    x *= 0.2
    product = x.double() @ weight.double().T
    unit = torch.finfo(dtype).eps
    halves = gated(product[:, :33]) * product[:, 33:]
    limit = 3 * unit * (1 + product[:, :33].abs()) * (1 + product[:, 33:].abs())
    assert ((small_m_geglu(x, weight, path=path).double() - halves).abs() <= limit).all()
    limit = 3 * unit * (1 + product.abs()) * (1 + factor.double().abs())
    found = small_m_gelu_mul(x, weight, factor, path=path).double()
    assert ((found - gated(product) * factor.double()).abs() <= limit).all()


def assert_gated(found, wanted):
    """Hold it to the same bits on a GPU; the interpreter's products are numpy's, whose sums depend on shape and CPU."""
    if DEVICE == "cuda":
        assert torch.equal(found, wanted)
    else:
        torch.testing.assert_close(found, wanted, rtol=2**-9, atol=1e-6 * wanted.abs().max().item())


@pytest.mark.sampled(4)
@needs_kernel
@by_plan
@by_dtype
def test_a_gate_in_the_same_launch_has_the_bits_of_one_behind_it(plan, dtype):
    for rows in rows_of(plan):
        for columns, depth in ((41, 107), (64, 192)):
            x, weight = draw(rows, depth, dtype=dtype), draw(2 * columns, depth, dtype=dtype, seed=1)
            gate, partner = small_m_linear(x, weight, plan, path="kernel").chunk(2, dim=1)
            out = torch.full((rows, columns), torch.nan, dtype=dtype, device=DEVICE)
            assert small_m_geglu(x, weight, plan, out=out, path="kernel") is out
            assert_gated(out, gelu_tanh_mul(gate, partner, path="kernel"))
            # A layer's slice of the per-layer embeddings: its rows lie apart.
            factor = draw(rows, 3, columns, dtype=dtype, seed=2)[:, 1]
            found = small_m_gelu_mul(x, weight[:columns], factor, plan, path="kernel")
            assert_gated(found, gelu_tanh_mul(gate.contiguous(), factor, path="kernel"))


@by_path
def test_gates_of_no_rows(path):
    assert small_m_geglu(draw(0, 32), draw(6, 32), path=path).shape == (0, 3)
    assert small_m_gelu_mul(draw(0, 32), draw(6, 32), draw(0, 6), path=path).shape == (0, 6)


GOOD = draw(2, 32), draw(5, 32)


def test_gates_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match=r"weight is \[5, 32\], expected an even number of rows"):
        small_m_geglu(*GOOD)
    for factor in (draw(2, 4), draw(2, 5).half(), draw(1, 5)):
        with pytest.raises(ValueError, match=r"factor is .*, expected \[2, 5\] torch.float32"):
            small_m_gelu_mul(*GOOD, factor)
    with pytest.raises(ValueError, match="factor has stride 2 inside a row, expected 1"):
        small_m_gelu_mul(*GOOD, draw(5, 2).T)


@pytest.mark.parametrize(
    ("x", "weight", "words"),
    [
        (GOOD[0][0], GOOD[1], r"x is \[32\], expected \[0\.\.16, 1 or more\]"),
        (draw(17, 32), GOOD[1], r"x is \[17, 32\]"),
        (draw(2, 0), draw(5, 0), r"x is \[2, 0\]"),
        (GOOD[0].int(), GOOD[1], "x is torch.int32, expected bfloat16, float16 or float32"),
        (GOOD[0], draw(5, 31), r"weight is \[5, 31\], expected \[1 or more, 32\]"),
        (GOOD[0], draw(0, 32), r"weight is \[0, 32\]"),
        (GOOD[0], GOOD[1].half(), "weight is torch.float16 on .*, expected torch.float32"),
        (draw(32, 2).T, GOOD[1], "x has stride 2 inside a row, expected 1"),
        (GOOD[0], draw(32, 5).T, "weight has stride 5 inside a row, expected 1"),
    ],
)
def test_what_does_not_fit_is_refused(x, weight, words):
    with pytest.raises(ValueError, match=words):
        small_m_linear(x, weight)


def test_an_output_that_does_not_fit_is_refused():
    for out in (torch.empty(2, 4), torch.empty(2, 5).half(), torch.empty(5, 2).T):
        with pytest.raises(ValueError, match=r"out is .*, expected \[2, 5\] torch.float32|out has stride 2"):
            small_m_linear(*GOOD, out=out.to(DEVICE))


@needs_kernel
@pytest.mark.parametrize(
    ("plan", "words"),
    [
        (Plan(1, 16, 32, 1, 3, 2, False), "the plan holds 1 rows, and x has 2"),
        (Plan(8, 16, 16, 3, 3, 2, False), "shares 2 blocks of depth 16 among 3 programs"),
        (Plan(8, 16, 16, 0, 3, 2, False), "among 0 programs"),
    ],
)
def test_a_plan_that_does_not_fit_is_refused(plan, words):
    with pytest.raises(ValueError, match=words):
        small_m_linear(*GOOD, plan, path="kernel")


@needs_kernel
def test_more_tiles_than_counters_are_refused():
    wide = torch.zeros(16 * 4096 + 1, 32, device=DEVICE)
    with pytest.raises(ValueError, match="the depth of 4097 tiles, at most 4096"):
        small_m_linear(GOOD[0], wide, Plan(8, 16, 16, 2, 3, 2, False), path="kernel")


def test_a_plan_for_every_number_of_rows():
    assert all(any_plan(rows, 5, 3).block_m >= rows for rows in range(1, MAX_ROWS + 1))
