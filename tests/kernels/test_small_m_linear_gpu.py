"""small_m_linear on a CUDA device: captured, behind kernels that it may overtake, and the plans of its table."""

import pytest
import torch
from test_small_m_linear import assert_product, draw

from gemma4_kernels import tickets
from gemma4_kernels.gelu_tanh_mul.launch import gelu_tanh_mul
from gemma4_kernels.launcher import let_next_in_where, let_nothing_in
from gemma4_kernels.rmsnorm_add.launch import rmsnorm_add
from gemma4_kernels.small_m_linear.launch import small_m_geglu, small_m_gelu_mul, small_m_linear
from gemma4_kernels.small_m_linear.spec import AXES, Plan, StreamedPlan
from gemma4_kernels.small_m_linear.tuned import streamed_plans, tuned_plans

pytestmark = pytest.mark.gpu
LAYERS = 40
STREAMED = [
    StreamedPlan(1280, 9, 3, 10, 1),
    StreamedPlan(640, 8, 4, 8, 2),
    StreamedPlan(256, 4, 4, 16, 2),
    StreamedPlan(96, 2, 1, 4, 1),
]
SIZES = [(3072, 2560), (2560, 10240), (100, 2816), (2816, 2112), (2560, 256), (1, 32), (133, 96), (1536, 12288)]


def matrices(*shape, seed=0):
    return draw(*shape, dtype=torch.bfloat16, seed=seed)


@pytest.mark.parametrize(
    ("plan", "rows"),
    [
        (Plan(1, 4, 512, 1, 3, 4, True), 1),
        (Plan(8, 16, 128, 8, 4, 2, True), 8),
        *((plan, rows) for plan in STREAMED[:3] for rows in (8, 12, 16)),
    ],
    ids=str,
)
def test_a_chain_of_early_launches_has_the_bits_of_one_that_waits(plan, rows):
    """Norm, product, norm, product: each reads what the one ahead writes, and shares its memory with the next."""
    weights = [matrices(1024, 1024, seed=seed) for seed in range(LAYERS)]
    ones, x = torch.ones(1024, device="cuda", dtype=torch.bfloat16), matrices(rows, 1024, seed=99)

    def chain(early):
        hidden = x
        for weight in weights:
            normed = rmsnorm_add(hidden, ones, x)
            hidden = small_m_linear(normed, weight, plan, early=early)
            if not early:
                torch.cuda.synchronize()
        return hidden

    expected = chain(False)
    assert expected.isfinite().all()
    for _ in range(20):
        assert torch.equal(chain(True), expected)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = chain(True)
    for _ in range(50):
        captured.fill_(torch.nan)
        graph.replay()
        assert torch.equal(captured, expected)


@pytest.mark.parametrize("rows", [8, 12, 16])
@pytest.mark.parametrize("plan", STREAMED[:3], ids=str)
def test_a_product_that_a_norm_lets_in_first_has_the_bits_of_one_that_waits(plan, rows):
    weights = [matrices(1024, 1024, seed=seed) for seed in range(LAYERS)]
    ones, x = torch.ones(1024, device="cuda", dtype=torch.bfloat16), matrices(rows, 1024, seed=99)

    def chain():
        hidden = x
        for weight in weights:
            hidden = small_m_linear(rmsnorm_add(hidden, ones, x), weight, plan)
        return hidden

    expected = chain()
    torch.cuda.synchronize()
    try:
        let_next_in_where(lambda: True, lambda *launch: True)
        chain()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured = chain()
    finally:
        let_nothing_in()
    for _ in range(50):
        captured.fill_(torch.nan)
        graph.replay()
        assert torch.equal(captured, expected)


def test_graphs_captured_without_a_warm_up_are_right_in_any_order():
    plan = Plan(8, 16, 64, 16, 4, 2, False)
    x, weight = matrices(8, 1024), matrices(4096, 1024, seed=1)
    expected = small_m_linear(x, weight, plan)
    torch.cuda.synchronize()
    graphs, captured, stream = [torch.cuda.CUDAGraph() for _ in range(3)], [], torch.cuda.Stream()
    tickets._COUNTERS.pop((x.device, stream.cuda_stream), None)
    for graph in graphs:
        with torch.cuda.graph(graph, stream=stream):
            captured.append(small_m_linear(x, weight, plan))
    with torch.cuda.stream(stream):
        assert torch.equal(small_m_linear(x, weight, plan), expected)
    for graph, made in reversed(list(zip(graphs, captured, strict=True))):
        for _ in range(2):
            made.fill_(torch.nan)
            graph.replay()
            assert torch.equal(made, expected)


def test_two_streams_have_counters_of_their_own():
    plan = Plan(8, 16, 64, 16, 4, 2, False)
    x, weight = matrices(8, 1024), matrices(4096, 1024, seed=1)
    expected = small_m_linear(x, weight, plan)
    torch.cuda.synchronize()
    streams, found = [torch.cuda.Stream() for _ in range(2)], []
    for _ in range(50):
        for stream in streams:
            with torch.cuda.stream(stream):
                found.append(small_m_linear(x, weight, plan))
    torch.cuda.synchronize()
    assert all(torch.equal(one, expected) for one in found)


def test_rows_more_than_two_gibi_elements_apart():
    x, weight, apart = matrices(3, 256), matrices(40, 256, seed=1), 2**30 + 16
    memory = torch.empty(2 * apart + 256, dtype=torch.bfloat16, device="cuda")
    far = memory.as_strided((3, 256), (apart, 1)).copy_(x)
    assert torch.equal(small_m_linear(far, weight), small_m_linear(x, weight))
    assert torch.equal(small_m_linear(x, far), small_m_linear(x, x.clone()))


@pytest.mark.parametrize("rows", AXES["rows"])
def test_every_plan_of_this_gpus_table_computes_the_product(rows):
    gpu = torch.cuda.get_device_name()
    sizes = [(3072, 2560), (2560, 10240), (20480, 2560), (256, 1536), (1536, 256), (2816, 2112), (128, 2816)]
    plans = {size: tuned_plans(gpu, "bfloat16", *size) for size in sizes}
    if not any(plans.values()):
        pytest.skip(f"no table for {gpu}")
    for (columns, depth), found in plans.items():
        assert found is not None
        x, weight = matrices(rows, depth), matrices(columns, depth, seed=1)
        assert_product(small_m_linear(x, weight, found[rows]), x, weight)


@pytest.mark.parametrize("rows", AXES["rows"])
def test_a_gate_of_every_plan_has_the_bits_of_two_launches(rows):
    gpu = torch.cuda.get_device_name()
    for columns, depth in ((20480, 2560), (12288, 1536), (24576, 1536), (4224, 2816)):
        plans = tuned_plans(gpu, "bfloat16", columns, depth)
        plan = plans[rows] if plans else None
        x, weight = matrices(rows, depth), matrices(columns, depth, seed=1) / 50
        gate, partner = small_m_linear(x, weight, plan).chunk(2, dim=1)
        expected = gelu_tanh_mul(gate.contiguous(), partner.contiguous())
        assert torch.equal(small_m_geglu(x, weight, plan), expected)
    for columns, depth in ((256, 2560), (256, 1536)):
        plans = tuned_plans(gpu, "bfloat16", columns, depth)
        plan = plans[rows] if plans else None
        x, weight, factor = (
            matrices(rows, depth),
            matrices(columns, depth, seed=1) / 50,
            matrices(rows, 9, columns)[:, 4],
        )
        expected = gelu_tanh_mul(small_m_linear(x, weight, plan), factor)
        assert torch.equal(small_m_gelu_mul(x, weight, factor, plan), expected)


@pytest.mark.parametrize("rows", [1, 3, 8, 9, 16])
@pytest.mark.parametrize("plan", STREAMED, ids=str)
def test_a_streamed_product_is_the_product_of_any_size(plan, rows):
    for columns, depth in SIZES:
        wide, weight = matrices(rows, depth + 64), matrices(columns, depth, seed=1)
        x = wide[:, :depth]
        out = torch.full((rows, columns + 3), torch.nan, dtype=torch.bfloat16, device="cuda")[:, 2:-1]
        small_m_linear(x, weight, plan, out=out)
        assert_product(out, x, weight)
        assert torch.equal(small_m_linear(x, weight, plan), out)


@pytest.mark.parametrize("plan", STREAMED, ids=str)
def test_a_streamed_row_has_the_same_bits_whatever_is_beside_it(plan):
    for columns, depth in SIZES:
        x, weight = matrices(16, depth), matrices(columns, depth, seed=1)
        whole = small_m_linear(x, weight, plan)
        for rows in (1, 2, 7, 8, 11):
            assert torch.equal(small_m_linear(x[:rows], weight, plan), whole[:rows])


@pytest.mark.parametrize("rows", [1, 8, 13])
@pytest.mark.parametrize("plan", STREAMED, ids=str)
def test_a_gate_of_a_streamed_product_is_that_of_the_rounded_product(plan, rows):
    for columns, depth in ((20480, 2560), (66, 96), (264, 1536)):
        x, weight = matrices(rows, depth), matrices(columns, depth, seed=1) / depth**0.5
        product = small_m_linear(x, weight, plan)
        gate, partner = product.double().chunk(2, dim=1)
        expected = torch.nn.functional.gelu(gate, approximate="tanh") * partner
        torch.testing.assert_close(small_m_geglu(x, weight, plan).double(), expected, rtol=2**-7, atol=1e-6)
        factor = matrices(rows, 3, columns)[:, 1]
        expected = torch.nn.functional.gelu(product.double(), approximate="tanh") * factor.double()
        torch.testing.assert_close(small_m_gelu_mul(x, weight, factor, plan).double(), expected, rtol=2**-7, atol=1e-6)


def test_what_a_streamed_plan_cannot_read_is_refused():
    plan, weight = STREAMED[0], matrices(64, 128)
    for x in (matrices(4, 129)[:, 1:], matrices(4, 132)[:, :128], matrices(4, 128).float()):
        with pytest.raises(ValueError, match=r"streamed plan takes bf16 rows|weight is"):
            small_m_linear(x, weight, plan)


@pytest.mark.parametrize("rows", AXES["rows"])
def test_every_streamed_plan_of_this_gpus_table_computes_the_product(rows):
    gpu = torch.cuda.get_device_name()
    plans = {size: streamed_plans(gpu, "bfloat16", *size) for size in SIZES}
    if not any(plans.values()):
        pytest.skip(f"no table for {gpu}")
    for (columns, depth), found in plans.items():
        if found is not None and found[rows] is not None:
            x, weight = matrices(rows, depth), matrices(columns, depth, seed=1)
            assert_product(small_m_linear(x, weight, found[rows]), x, weight)
