"""layer_tail on a CUDA device: captured, one behind the other, beside what other rows hold."""

import pytest
import torch
from test_layer_tail import assert_tail, case_of, draw_case

from gemma4_kernels.launcher import let_next_in_where, let_nothing_in
from gemma4_kernels.layer_tail.launch import layer_tail
from gemma4_kernels.layer_tail.spec import CASES, TailPlan

pytestmark = pytest.mark.gpu
PLANS = [TailPlan(1280, 9, 3, 10), TailPlan(96, 3, 1, 4), TailPlan(1536, 7, 7, 8), TailPlan(1280, 9, 3, 10, 16)]


@pytest.fixture
def drawn():
    return draw_case(case_of("e4b-sliding"), torch.bfloat16, "cuda")


@pytest.mark.parametrize("plan", PLANS, ids=str)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_it_is_the_formula(case, plan):
    drawn = draw_case(case, torch.bfloat16, "cuda")
    assert_tail(layer_tail(*drawn, plan), drawn)


def test_rows_that_are_apart_and_a_weight_in_another(drawn):
    weights, *rest = drawn[3:]
    apart = [torch.cat([rows, torch.full_like(rows, torch.nan)], 1)[:, : rows.shape[1]] for rows in drawn[:3]]
    inside = torch.cat([weights.o, torch.full_like(weights.o, torch.nan)], 1)[:, : weights.o.shape[1]]
    found = layer_tail(*apart, weights._replace(o=inside), *rest, PLANS[0])
    assert all(map(torch.equal, found, layer_tail(*drawn, PLANS[0])))


def test_a_row_has_the_same_bits_whatever_stands_beside_it(drawn):
    whole = layer_tail(*drawn, PLANS[0])
    for rows in (1, 3, 7):
        some = layer_tail(*[one[:rows] for one in drawn[:3]], *drawn[3:], PLANS[0])
        assert all(torch.equal(part, one[:rows]) for part, one in zip(some, whole, strict=True))
    drawn[0][5], drawn[1][6], drawn[2][7] = torch.nan, torch.inf, 1e30
    spoilt = layer_tail(*drawn, PLANS[0])
    assert all(torch.equal(part[:5], one[:5]) for part, one in zip(spoilt, whole, strict=True))
    assert all(part[5].isnan().all() for part in spoilt)
    # A row that is spoilt leaves nothing behind for the next launch.
    again = draw_case(case_of("e4b-sliding"), torch.bfloat16, "cuda")
    assert all(map(torch.equal, layer_tail(*again, PLANS[0]), whole))


def chain(layers, attended, residual, early=True):
    """Return the last of a chain of tails, each of which reads what the one ahead projected."""
    for _, _, ple, *rest in layers:
        made = layer_tail(attended, residual, ple, *rest, PLANS[0], early=early)
        attended, residual = made.projected[:, : attended.shape[1]], made.hidden
        if not early:
            torch.cuda.synchronize()
    return made


def test_a_chain_of_early_launches_has_the_bits_of_one_that_waits():
    case = case_of("e2b-full")._replace(next_columns=4096)
    layers = [draw_case(case, torch.bfloat16, "cuda", seed) for seed in range(6)]
    attended, residual = layers[0][:2]
    expected = chain(layers, attended, residual, early=False)
    assert all(one.isfinite().all() for one in expected)
    for _ in range(20):
        assert all(map(torch.equal, chain(layers, attended, residual), expected))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = chain(layers, attended, residual)
    for _ in range(50):
        for one in captured:
            one.fill_(torch.nan)
        graph.replay()
        assert all(map(torch.equal, captured, expected))


def test_a_graph_and_eager_launches_take_turns(drawn):
    expected = layer_tail(*drawn, PLANS[0])
    stream = torch.cuda.Stream()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        captured = layer_tail(*drawn, PLANS[0])
    for _ in range(10):
        graph.replay()
        assert all(map(torch.equal, layer_tail(*drawn, PLANS[0]), expected))
        assert all(map(torch.equal, captured, expected))


def test_beside_other_work_on_another_stream(drawn):
    expected = layer_tail(*drawn, PLANS[0])
    busy, matrix = torch.cuda.Stream(), torch.randn(4096, 4096, device="cuda")
    torch.cuda.synchronize()
    for _ in range(20):
        with torch.cuda.stream(busy):
            matrix @ matrix
        assert all(map(torch.equal, layer_tail(*drawn, PLANS[0]), expected))


def test_kernels_that_let_the_next_one_in_first_change_nothing(drawn):
    expected = layer_tail(*drawn, PLANS[0])
    try:
        let_next_in_where(lambda: True, lambda *launch: True)
        assert all(map(torch.equal, layer_tail(*drawn, PLANS[0]), expected))
    finally:
        let_nothing_in()
