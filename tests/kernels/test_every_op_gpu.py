"""On a CUDA device, what row_op_tests.py does not cover: graphs and far rows of the ops that are no row ops."""

import pytest
import torch

from gemma4_kernels.capped_logits.launch import capped_logits
from gemma4_kernels.gelu_tanh_mul.launch import gelu_tanh_mul
from gemma4_kernels.ple_front_end.launch import ple_front_end
from gemma4_kernels.routing.launch import routing
from gemma4_kernels.token_embeddings.launch import token_embeddings

pytestmark = pytest.mark.gpu


def rows(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).bfloat16().cuda()


@pytest.fixture(params=["routing", "gelu_tanh_mul", "ple_front_end", "capped_logits", "token_embeddings"])
def op(request):
    """(a function of one tensor of rows, the shape of that)."""
    weight, scale, other = rows(256), rows(128), rows(5, 256)
    ids = torch.tensor([4, 0, 3, 1, 4], device="cuda")
    return {
        "routing": (lambda logits: torch.cat([part.float() for part in routing(logits, scale, 8)], dim=1), (5, 128)),
        "gelu_tanh_mul": (lambda gate: gelu_tanh_mul(gate, other), (5, 256)),
        "ple_front_end": (lambda projection: ple_front_end(projection, weight, None, 1536), (5, 3, 256)),
        "capped_logits": (lambda logits: capped_logits(logits, 30.0), (5, 256)),
        "token_embeddings": (
            lambda table: torch.cat(token_embeddings(ids, table, 50.6, table, 16.0, hidden_ids=(3, 1, 0), pad=2)),
            (5, 256),
        ),
    }[request.param]


def test_a_captured_launch_computes_anew_at_each_replay(op):
    call, shape = op
    given = rows(*shape)
    call(given)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = call(given)
    for seed in (1, 2):
        given.copy_(rows(*shape, seed=seed))
        graph.replay()
        assert torch.equal(captured, call(given))


def test_rows_more_than_two_gibi_elements_apart(op):
    call, shape = op
    given, apart = rows(*shape), 2**30 + 16
    memory = torch.full((4 * apart + 768,), torch.nan, dtype=torch.bfloat16, device="cuda")
    far = memory.as_strided(shape, (apart, *given.stride()[1:])).copy_(given)
    assert torch.equal(call(far), call(given))
