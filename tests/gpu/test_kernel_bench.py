"""`bench kernels` on a GPU at a size that takes seconds: every arm runs, answers agree, launches are counted."""

import gc

import pytest
import torch

from gemma4_repro.kernel_bench.cell import Cell, library_norms, measure
from gemma4_repro.kernel_bench.plan import MODELS, OPS, applies
from gemma4_repro.kernel_bench.replay_clock import capture, interleaved

# What runs on a GPU alone has run with this release alone.
pytestmark = [pytest.mark.gpu, pytest.mark.releases("0.5.13.post1")]

CELLS = [pytest.param(op, model, id=f"{op}-{model.id}") for op in OPS for model in MODELS if applies(op, model)]
# torch.compile takes a minute per op, and FlashInfer may have to build.
ARMS = ("ours", "ours-eager", "sglang", "eager", "sgl-kernel", "copy", "empty")


@pytest.mark.parametrize(("op", "model"), CELLS)
def test_a_cell_is_measured_by_every_arm(op, model):
    results = list(measure(Cell(op, model, 8), ARMS, 5, 5.0, count=True))
    assert [fields for kind, fields in results if kind == "lost"] == []
    samples = {fields["arm"]: fields["us"] for kind, fields in results if kind == "samples"}
    assert set(samples) | {"sgl-kernel"} == set(ARMS)
    assert all(len(us) == 5 and min(us) > 0 for us in samples.values())
    launches = {fields["arm"]: fields["launches_per_step"] for kind, fields in results if kind == "launches"}
    assert launches["ours"] == (1 if op == "ple_front_end" else model.layers)
    assert launches["ours"] <= launches["sglang"] <= launches["eager"]


@pytest.mark.parametrize(("op", "model"), CELLS)
def test_the_releases_sequence_computes_the_same(op, model):
    cell = Cell(op, model, 8)
    arguments = cell.arguments(0)
    if op == "routing":
        # Eager's topk breaks ties as it likes: no ties.
        arguments = (torch.rand(8, model.experts, device="cuda").argsort(dim=1).bfloat16() / 16, arguments[1])
    wanted, found = cell.arms.eager(*arguments), cell.arms.released(library_norms(), *arguments)
    pairs = [(found, wanted)] if isinstance(wanted, torch.Tensor) else zip(found, wanted, strict=True)
    for one, other in pairs:
        if not other.is_floating_point():
            assert torch.equal(one.long(), other.long())
            continue
        scale = other.float().abs().max().item()
        assert torch.allclose(one.float(), other.float(), rtol=2**-5, atol=2**-5 * scale)


def test_what_a_graph_reads_lives_as_long_as_the_graph():
    """Buffers that only the call owns, in memory of their own: other captures empty torch's cache before they begin."""

    def copies_of(value):
        pairs = [[torch.full((1 << 20,), value, device="cuda") for _ in range(2)] for _ in range(4)]
        kept.append(pairs[0][0].data_ptr())
        return lambda call: pairs[call][0].copy_(pairs[call][1])

    kept, recorded = [], {}
    for value in (1.0, 2.0, 3.0):
        recorded[str(value)] = capture(copies_of(value), 4, 4)
        gc.collect()
        torch.cuda.empty_cache()
    assert all(len(us) == 5 for us in interleaved({name: one.graph for name, one in recorded.items()}, 5, 5.0).values())
    assert len(set(kept)) == 3
