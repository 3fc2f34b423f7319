"""gelu_tanh_mul against fp64 and against torch's eager operations."""

import pytest
import torch
from exact_rows import Exact
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_paths import DEVICE, INTERPRETED, PATHS, cases_here
from row_op_tests import DTYPES, LAYOUTS, POISON, assert_near, lay_out, poisoned

from gemma4_kernels import row_plan
from gemma4_kernels.gelu_tanh_mul import spec
from gemma4_kernels.gelu_tanh_mul.launch import gelu_tanh_mul
from gemma4_kernels.rounding import Rounding

pytestmark = pytest.mark.filterwarnings("ignore:(invalid value|overflow) encountered:RuntimeWarning")


def make(rows, width, dtype, spread=3.0):
    random = torch.Generator().manual_seed(rows)
    return tuple((torch.randn(rows, width, generator=random) * spread).to(dtype).to(DEVICE) for _ in range(2))


def in_fp64(gate, ple):
    x = gate.double()
    inner = (2 / torch.pi) ** 0.5 * (x + 0.044715 * x**3)
    value = x * torch.sigmoid(2 * inner) * ple.double()
    return Exact(value, value.abs())


def check(gate, ple, path):
    dtype = gate.dtype
    assert_near(gelu_tanh_mul(gate, ple, path=path), in_fp64(gate, ple), tolerance(gate))
    found = gelu_tanh_mul(gate, ple, rounding=Rounding.EAGER, path=path)
    eager = torch.nn.functional.gelu(gate, approximate="tanh") * ple
    # Where tanh is near -1 eager keeps few bits of 1 + tanh, and another tanh keeps others.
    unit = {torch.bfloat16: 2**-7, torch.float16: 2**-10, torch.float32: 2e-6}[dtype]
    cancelled = 2e-7 * (gate.double() * ple.double()).abs()
    off = (found.double() - eager.double()).abs()
    assert (off <= 2 * unit * eager.double().abs() + cancelled + 2**-24 * (dtype == torch.float16)).all()
    if dtype != torch.float32 and not INTERPRETED and found.numel():
        assert (found == eager).double().mean() >= 0.999


def tolerance(gate):
    relative = spec.TOLERANCES[str(gate.dtype).removeprefix("torch.")].relative
    # exp(x) is 2 ** (x * log2 e), and the product's rounding counts more the larger it is.
    return relative * (1 + gate.double().abs().clamp(max=16) ** 3 / 8) if gate.dtype == torch.float32 else relative


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("case", cases_here(spec.CASES))
@pytest.mark.parametrize("path", PATHS)
def test_against_fp64_and_against_eager(path, case, dtype):
    check(*make(case.rows, case.width, dtype), path)


@pytest.mark.slow
@pytest.mark.parametrize("path", PATHS)
def test_every_bf16_gate(path):
    """All 65,536 of them."""
    gate = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(torch.bfloat16).view(8, 8192)
    gate = gate.to(DEVICE)
    ones = torch.ones_like(gate)
    for rounding in Rounding:
        found, eager = gelu_tanh_mul(gate, ones, rounding=rounding, path=path), in_fp64(gate, ones).value
        odd = gate.isnan() | (gate == -torch.inf)
        assert found[odd].isnan().all()
        assert torch.equal(found[gate == torch.inf], gate[gate == torch.inf])
        # A large gate is its own gelu, a far negative one's is 0; between the two, near the exact result.
        assert torch.equal(found[(gate > 10) & ~odd], gate[(gate > 10) & ~odd])
        assert (found[(gate < -20) & ~odd] == 0).all()
        middle = gate.abs() <= 4
        off = (found[middle].double() - eager[middle]).abs()
        assert (off <= 2**-7 * eager[middle].abs() + 2**-118 + 2e-7 * (rounding is Rounding.EAGER)).all()


@pytest.mark.parametrize("path", PATHS)
def test_one_layers_slice_of_all_layers(path):
    gate, _ = make(5, 256, torch.bfloat16)
    all_layers = torch.randn(5, 35, 256, generator=torch.Generator().manual_seed(1)).bfloat16().to(DEVICE)
    for layer in (0, 17, 34):
        check(gate, all_layers[:, layer], path)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("path", PATHS)
def test_layouts(path, layout):
    gate, ple = make(3, 272, torch.bfloat16)
    wanted = gelu_tanh_mul(gate, ple[:1].expand(3, -1) if layout == "one-row-for-all" else ple, path=path)
    assert torch.equal(gelu_tanh_mul(gate, lay_out(ple, layout), path=path), wanted)


@pytest.mark.parametrize("path", PATHS)
def test_a_poisoned_output_is_filled_and_outputs_may_be_inputs(path):
    gate, ple = make(3, 77, torch.bfloat16)
    wanted = gelu_tanh_mul(gate, ple, path=path)
    view, memory = poisoned(3, 77, torch.bfloat16, 5)
    assert gelu_tanh_mul(gate, ple, out=view, path=path) is view
    assert torch.equal(view, wanted)
    assert (memory[:, 77:] == POISON).all()
    for given_ in (0, 1):
        pair = make(3, 77, torch.bfloat16)
        assert torch.equal(gelu_tanh_mul(*pair, out=pair[given_], path=path), wanted)


@pytest.mark.parametrize("path", PATHS)
def test_tiles_of_rows_give_the_same(path, monkeypatch):
    gate, ple = make(37, 256, torch.bfloat16)
    wanted = gelu_tanh_mul(gate, ple, path=path)
    monkeypatch.setattr(row_plan, "_TILED_FROM", 1)
    assert torch.equal(gelu_tanh_mul(gate, ple, path=path), wanted)


@pytest.mark.parametrize("path", PATHS)
@settings(max_examples=40, deadline=None)
@given(rows=st.integers(1, 3), width=st.integers(1, 200), dtype=st.sampled_from(DTYPES), spread=st.floats(1e-6, 3.0))
def test_any_shape(path, rows, width, dtype, spread):
    check(*make(rows, width, dtype, spread), path)


@pytest.mark.parametrize(
    ("gate", "ple", "message"),
    [
        (torch.zeros(16), torch.zeros(16), "gate is"),
        (torch.zeros(2, 16), torch.zeros(2, 15), "ple is"),
        (torch.zeros(2, 16), torch.zeros(2, 16, dtype=torch.bfloat16), "bfloat16"),
        (torch.zeros(2, 16), torch.zeros(16, 2).T, "stride"),
        (torch.zeros(2, 16, dtype=torch.int64), torch.zeros(2, 16), "int64"),
    ],
)
def test_what_it_refuses(gate, ple, message):
    with pytest.raises(ValueError, match=message):
        gelu_tanh_mul(gate, ple)
