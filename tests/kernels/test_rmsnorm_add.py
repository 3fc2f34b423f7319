"""rmsnorm_add against fp64 and against Hugging Face's modules."""

import pytest
import torch
from eager_gemma4 import hf_norm
from exact_rows import exact
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_paths import DEVICE, PATHS
from row_op_tests import DTYPES, RowOpTests

from gemma4_kernels.rmsnorm_add.launch import rmsnorm_add
from gemma4_kernels.rounding import Rounding


class TestRmsnormAdd(RowOpTests):
    op = "rmsnorm_add"
    rows = ("x", "residual")
    weights = ("weight",)

    def run(self, inputs, rounding, path, out=None):
        return (rmsnorm_add(**inputs, rounding=rounding, path=path, out=out and out[0]),)

    def exact(self, inputs):
        return (exact(inputs["x"]).normed(inputs["weight"]).plus(exact(inputs["residual"])),)

    def eager(self, inputs):
        return (inputs["residual"] + hf_norm(inputs["x"], inputs["weight"]),)


@pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")
@pytest.mark.parametrize("path", PATHS)
def test_a_row_whose_mean_square_overflows_becomes_its_residual(path):
    x = torch.full((2, 64), 1e25, device=DEVICE)
    residual = torch.randn(2, 64, device=DEVICE)
    for rounding in Rounding:
        assert torch.equal(
            rmsnorm_add(x, torch.ones(64, device=DEVICE), residual, rounding=rounding, path=path), residual
        )


@pytest.mark.parametrize("path", PATHS)
def test_eps_is_added_to_the_mean_square(path):
    x = torch.full((1, 64), 3.0, device=DEVICE)
    found = rmsnorm_add(x, torch.ones(64, device=DEVICE), torch.zeros_like(x), 16.0, path=path)
    assert torch.allclose(found, torch.full_like(x, 0.6))


@pytest.mark.parametrize("path", PATHS)
@settings(max_examples=40, deadline=None)
@given(
    rows=st.integers(1, 3),
    width=st.integers(1, 200),
    dtype=st.sampled_from(DTYPES),
    spread=st.floats(1e-6, 1e3),
    seed=st.integers(0, 99),
)
def test_any_width(path, rows, width, dtype, spread, seed):
    def draw(*shape, generator):
        return torch.randn(shape, generator=generator) * spread

    tests = TestRmsnormAdd()
    tests.check(tests.make(rows, width, dtype, draw, seed), path, both=False)


@pytest.mark.gpu
@pytest.mark.parametrize("rows", [1, 300])
def test_a_chain_of_launches_that_start_early_reads_what_the_one_before_wrote(rows):
    """Each starts before the one ahead of it has ended, and must wait before it reads, and before it writes."""
    width, links = 2816, 200
    random = torch.Generator().manual_seed(3)
    weight = (1 + torch.randn(width, generator=random) / 8).to("cuda")
    start = torch.randn(rows, width, generator=random).to("cuda")
    wanted = [start.clone(), start.flip(0).clone()]
    for link in range(links):
        rmsnorm_add(wanted[link % 2], weight, wanted[1 - link % 2], out=wanted[1 - link % 2])
        torch.cuda.synchronize()
    found = [start.clone(), start.flip(0).clone()]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for link in range(links):
            rmsnorm_add(found[link % 2], weight, found[1 - link % 2], out=found[1 - link % 2])
    for _ in range(20):
        found[0].copy_(start)
        found[1].copy_(start.flip(0))
        graph.replay()
        assert torch.equal(found[0], wanted[0])
        assert torch.equal(found[1], wanted[1])
