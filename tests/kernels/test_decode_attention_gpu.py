"""decode_attention on a CUDA device: captured, and behind kernels that it may overtake."""

import pytest
import torch
from test_decode_attention import FRONTS, Step, assert_nothing_else_is_written, assert_step, draw, lists, made_hard

from gemma4_kernels.decode_attention import launch
from gemma4_kernels.decode_attention.launch import Plan, decode_attention
from gemma4_kernels.rmsnorm_add.launch import rmsnorm_add

pytestmark = pytest.mark.gpu
LAYERS = 40


@pytest.mark.parametrize("plan", [None, Plan(8), Plan(1)], ids=str)
@pytest.mark.parametrize("head_dim", [256, 512])
def test_a_chain_of_early_launches_has_the_bits_of_one_that_waits(plan, head_dim):
    """Norm, attention, norm, attention: each reads what the one ahead writes, and shares its memory with the next."""
    starts, slots, count = lists((900, 1, 400))
    pools = [draw(count, 2, head_dim, dtype=torch.bfloat16, seed=seed) for seed in range(8)]
    width = 8 * head_dim
    first, ones = draw(3, width, dtype=torch.bfloat16, seed=99), torch.ones(width, device="cuda", dtype=torch.bfloat16)

    def chain(early):
        hidden = first
        for layer in range(LAYERS):
            q = rmsnorm_add(hidden, ones, first).view(3, 8, head_dim)
            keys, values = pools[layer % 8], pools[(layer + 3) % 8]
            hidden = decode_attention(q, keys, values, starts, slots, 0.05, plan=plan, early=early).view(3, width)
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


def test_a_graph_follows_lengths_that_change():
    """SGLang captures with one slot for each request and replays with other lists in the same memory."""
    lengths = torch.tensor([0, 1, 2], dtype=torch.int32, device="cuda")
    slots = torch.zeros(5000, dtype=torch.long, device="cuda")
    pools = [draw(5000, 2, 256, dtype=torch.bfloat16, seed=seed) for seed in (1, 2)]
    q = draw(2, 8, 256, dtype=torch.bfloat16)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = decode_attention(q, *pools, lengths, slots, 0.06)
    for starts in ((0, 3000, 3001), (0, 1, 5000), (0, 0, 70), (0, 2500, 5000)):
        lengths.copy_(torch.tensor(starts))
        slots.copy_(torch.randperm(5000))
        captured.fill_(torch.nan)
        graph.replay()
        assert torch.equal(captured, decode_attention(q, *pools, lengths, slots, 0.06))
        assert captured.isfinite().all()


LENGTHS = ((1,), (37,), (512,) * 8, (129, 64, 0, 200, 1, 63, 65), (512, 513, 1024, 520, 8, 9))


@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
@pytest.mark.parametrize("sizes", [(2, 4), (1, 8), (8, 2), (3, 1), (1, 16)], ids=str)
@pytest.mark.parametrize("head_dim", [256, 512])
@FRONTS
def test_a_front_norms_turns_and_stores_first_with_the_same_bits_each_time(own, head_dim, sizes, lengths):
    # As many requests as run at a time.
    lengths = lengths[: {(8, 2): 3, (1, 16): 6}.get(sizes)]
    step = Step(lengths, *sizes, head_dim, torch.bfloat16, own)
    first = step.run()
    assert_step(step, first)
    for _ in range(20):
        again = step.run()
        assert all(torch.equal(one.nan_to_num(), other.nan_to_num()) for one, other in zip(again, first, strict=True))


@pytest.mark.parametrize("parts", [1, 2, 4, 8])
@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
@pytest.mark.parametrize("sizes", [(1, 8, 256), (3, 1, 256), (2, 4, 512), (1, 8, 512)], ids=str)
@FRONTS
def test_any_number_of_blocks_shares_the_slots(own, sizes, lengths, parts, monkeypatch):
    monkeypatch.setattr(launch, "cluster_shares", lambda *sizes: (parts, 1))
    step = Step(lengths, *sizes, torch.bfloat16, own)
    first = step.run()
    assert_step(step, first)
    for _ in range(5):
        again = step.run()
        assert all(torch.equal(one.nan_to_num(), other.nan_to_num()) for one, other in zip(again, first, strict=True))


@pytest.mark.parametrize(("parts", "teams"), [(8, 2), (4, 3), (2, 1), (2, 8)])
@pytest.mark.parametrize("lengths", [(9000,), (1, 5000, 0, 2049), (512, 1025, 4096)], ids=str)
@pytest.mark.parametrize("sizes", [(2, 4), (1, 8), (2, 8), (1, 1)], ids=str)
@FRONTS
def test_any_number_of_clusters_shares_many_slots_of_wide_heads(own, sizes, lengths, parts, teams, monkeypatch):
    monkeypatch.setattr(launch, "cluster_shares", lambda *sizes: (parts, teams))
    step = Step(lengths, *sizes, 512, torch.bfloat16, own)
    first = step.run()
    assert_step(step, first)
    for _ in range(20):
        again = step.run()
        assert all(torch.equal(one.nan_to_num(), other.nan_to_num()) for one, other in zip(again, first, strict=True))


@pytest.mark.parametrize("head_dim", [256, 512])
def test_a_front_writes_its_places_and_nothing_else(head_dim):
    assert_nothing_else_is_written(Step((37, 0, 50), 2, 4, head_dim, torch.bfloat16))


@pytest.mark.parametrize("head_dim", [256, 512])
def test_a_front_with_hard_numbers(head_dim):
    step = made_hard(Step((40, 41, 42), 1, 4, head_dim, torch.bfloat16))
    assert_step(step, step.run())


@pytest.mark.parametrize("head_dim", [256, 512])
def test_a_front_behind_a_kernel_that_it_may_overtake(head_dim):
    """Norm, attention with its store, norm: queries and new keys are what the kernel ahead writes."""
    step = Step((300, 1, 512), 2, 4, head_dim, torch.bfloat16)
    new, width = step.front.new, 12 * head_dim
    ones = torch.ones(width, device="cuda", dtype=torch.bfloat16)
    first = draw(3, width, dtype=torch.bfloat16, seed=98)

    def chain(early):
        hidden, keys, values, found = first, step.keys.clone(), step.values.clone(), []
        for _ in range(LAYERS):
            rows = rmsnorm_add(hidden, ones, first)
            parts = rows.split([8 * head_dim, 2 * head_dim, 2 * head_dim], 1)
            q, k, v = (part.unflatten(1, (-1, head_dim)) for part in parts)
            front = step.front._replace(new=new._replace(keys=k, values=v))
            out = decode_attention(q, keys, values, step.starts, step.slots, 0.05, front=front, early=early)
            hidden = torch.nn.functional.pad(out.flatten(1), (0, 4 * head_dim))
            found.append(out)
            if not early:
                torch.cuda.synchronize()
        return torch.stack(found)

    expected = chain(False)
    assert expected.isfinite().all()
    for _ in range(20):
        assert torch.equal(chain(True), expected)


@pytest.mark.parametrize(
    ("sizes", "dtype"),
    [
        (((5, 6), 2, 4, 128), torch.bfloat16),
        (((50, 6), 2, 4, 256), torch.float16),
        (((512,) * 13, 2, 4, 256), torch.bfloat16),
        (((768,) * 40, 2, 4, 512), torch.bfloat16),
        (((768, 3000, 0, 1), 2, 8, 512), torch.bfloat16),
    ],
    ids=["heads", "dtype", "requests", "wide", "wide-and-long"],
)
@FRONTS
def test_a_front_that_no_cluster_takes_is_one_launch_too(own, sizes, dtype):
    step = Step(*sizes, dtype, own)
    first = step.run()
    assert_step(step, first)
    for _ in range(20):
        again = step.run()
        assert all(torch.equal(one.nan_to_num(), other.nan_to_num()) for one, other in zip(again, first, strict=True))


@pytest.mark.parametrize("sizes", [(2, 4, 256), (1, 8, 256), (2, 4, 512), (1, 8, 512)], ids=str)
@FRONTS
def test_a_front_of_the_models_heads_captured_and_again(own, sizes):
    """Each replay stores the same rows, so its answer has the bits of the first."""
    step = Step((511, 1, 768, 4000), *sizes, torch.bfloat16, own)
    first = step.run()
    assert_step(step, first)
    keys, values = step.keys.clone(), step.values.clone()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = decode_attention(step.q, keys, values, step.starts, step.slots, step.scale, front=step.front)
    for _ in range(50):
        captured.fill_(torch.nan)
        if own:
            keys[step.front.new.places] = torch.nan
        graph.replay()
        assert torch.equal(captured, first[0])
        assert torch.equal(keys.nan_to_num(), first[1].nan_to_num())
