"""Torch stand-ins for Triton and CUDA kernels: against SGLang's own kernels where they run here, else brute force."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gemma4_runtime.host import alloc_kernels, speculative_tree
from gemma4_runtime.host.torch_forms import softcap_inplace

pytestmark = pytest.mark.releases("0.5.13.post1", "0.5.23")

PAGE = 4


@st.composite
def extends(draw):
    prefixes = draw(st.lists(st.integers(0, 13), min_size=1, max_size=4))
    seqs = [prefix + draw(st.integers(0, 11)) for prefix in prefixes]
    return prefixes, seqs


# Later releases keep the kernel elsewhere, and choose another on a CPU.
@pytest.mark.releases("0.5.13.post1")
@settings(max_examples=40, deadline=None)
@given(extends(), st.randoms())
def test_alloc_extend_equals_sglangs_kernel(lengths, random):
    from sglang.srt.mem_cache.triton_ops.allocator import alloc_extend_kernel

    prefixes, seqs = lengths
    # A request's last slot lies in a page of its own, at the offset that its prefix length says.
    last = [(50 + i) * PAGE + (n - 1) % PAGE if n else -1 for i, n in enumerate(prefixes)]
    pages = list(range(1, 40))
    random.shuffle(pages)
    arguments = [torch.tensor(x, dtype=torch.int64) for x in (prefixes, seqs, last, pages)]
    total = sum(seqs) - sum(prefixes)
    ours, theirs = torch.full((total,), -9), torch.full((total,), -9)
    upper = 1 << (len(seqs) - 1).bit_length()
    alloc_kernels.alloc_extend_kernel[(len(seqs),)](*arguments, ours, upper, PAGE)
    alloc_extend_kernel[(len(seqs),)](*arguments, theirs, upper, PAGE)
    assert ours.tolist() == theirs.tolist()


# Later releases keep the kernel elsewhere, and choose another on a CPU.
@pytest.mark.releases("0.5.13.post1")
@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(2, 20), min_size=1, max_size=5), st.randoms())
def test_alloc_decode_equals_sglangs_kernel(seqs, random):
    from sglang.srt.mem_cache.triton_ops.allocator import alloc_decode_kernel

    last = [(50 + i) * PAGE + (n - 2) % PAGE for i, n in enumerate(seqs)]
    pages = list(range(1, 40))
    random.shuffle(pages)
    arguments = [torch.tensor(x, dtype=torch.int64) for x in (seqs, last, pages)]
    ours, theirs = torch.full((len(seqs),), -9), torch.full((len(seqs),), -9)
    upper = 1 << (len(seqs) - 1).bit_length()
    alloc_kernels.alloc_decode_kernel[(len(seqs),)](*arguments, ours, upper, PAGE)
    alloc_decode_kernel[(len(seqs),)](*arguments, theirs, upper, PAGE)
    assert ours.tolist() == theirs.tolist()


def test_a_short_free_list_is_left_to_the_caller():
    out = torch.empty(8, dtype=torch.int64)
    zero, eight, free = torch.tensor([0]), torch.tensor([8]), torch.tensor([7])
    alloc_kernels.alloc_extend_kernel[(1,)](zero, eight, torch.tensor([-1]), free, out, 1, PAGE)
    assert out[:4].tolist() == [28, 29, 30, 31]


def test_softcap():
    logits = torch.tensor([[-1e30, -30.0, -1e-6, 0.0, 2.5, 1e30]])
    expected = 30.0 * torch.tanh(logits.double() / 30.0)
    assert softcap_inplace(logits, 30.0) is logits
    torch.testing.assert_close(logits.double(), expected, atol=1e-5, rtol=1e-6)


@st.composite
def forests(draw):
    """Random EAGLE trees: per request a parent position for every node but the root."""
    nodes = draw(st.integers(2, 7))
    trees = [[draw(st.integers(0, i - 1)) for i in range(1, nodes)] for _ in range(draw(st.integers(1, 3)))]
    return nodes, trees


def encode(parents, topk, nodes):
    """EAGLE's numbering: draft index // topk names a group; group 0 hangs off the root, group g off parent_list[g]."""
    selected, parent_list, groups, used = [], [0], {0: 0}, {}
    for parent in parents:
        if parent not in groups:
            groups[parent] = len(parent_list)
            parent_list.append(selected[parent - 1])
        group = groups[parent]
        selected.append(group * topk + used.get(group, 0))
        used[group] = used.get(group, 0) + 1
    return selected, parent_list + [0] * (nodes - len(parent_list))


def build(nodes, trees, lens):
    topk = nodes
    encoded = [encode(parents, topk, nodes) for parents in trees]
    rows = len(trees)
    mask = torch.zeros(sum(lens) * nodes + nodes * nodes * rows, dtype=torch.bool)
    positions = torch.zeros(rows * nodes, dtype=torch.long)
    index, child, sibling = torch.full((3, rows, nodes), -1)
    speculative_tree.build_tree(
        torch.tensor([parents for _, parents in encoded]),
        torch.tensor([selected for selected, _ in encoded]),
        torch.tensor(lens),
        mask,
        positions,
        index,
        child,
        sibling,
        topk,
        nodes - 1,
        nodes,
    )
    return mask, positions, index, child, sibling


@given(forests(), st.data())
def test_tree_masks_positions_and_links(forest, data):
    nodes, trees = forest
    # SGLang hands over drafts sorted by index, so a node's number in the tree follows its parent's.
    trees = [sorted(parents) for parents in trees]
    lens = [data.draw(st.integers(1, 5)) for _ in trees]
    mask, positions, _, child, sibling = build(nodes, trees, lens)
    start = 0
    for row, (parents, length) in enumerate(zip(trees, lens, strict=True)):
        block = mask[start : start + nodes * (length + nodes)].view(nodes, length + nodes)
        start += nodes * (length + nodes)
        assert block[:, :length].all()
        for node in range(nodes):
            path, at = {node}, node
            while at:
                at = parents[at - 1]
                path.add(at)
            assert set(block[node, length:].nonzero().flatten().tolist()) == path
            assert positions[row * nodes + node] == length + len(path) - 1
            children, at = [], int(child[row, node])
            while at != -1:
                children.append(at)
                at = int(sibling[row, at])
            assert children == [i + 1 for i, parent in enumerate(parents) if parent == node]


@given(forests(), st.data())
def test_greedy_verification_accepts_the_targets_path(forest, data):
    nodes, trees = forest
    trees = [sorted(parents) for parents in trees]
    _, _, index, child, sibling = build(nodes, trees, [3] * len(trees))
    tokens = st.integers(0, 2)
    rows = len(trees)
    drafts = torch.tensor([[data.draw(tokens) for _ in range(nodes)] for _ in range(rows)])
    target = torch.tensor([[data.draw(tokens) for _ in range(nodes)] for _ in range(rows)])
    predicts = torch.full((rows * nodes,), -1)
    accept_index, count = torch.full((rows, nodes), -1), torch.zeros(rows, dtype=torch.long)
    speculative_tree.verify_tree_greedy(predicts, accept_index, count, drafts, index, child, sibling, target)
    for row, parents in enumerate(trees):
        path = [0]
        while True:
            wanted = int(target[row, path[-1]])
            options = [i + 1 for i, p in enumerate(parents) if p == path[-1] and int(drafts[row, i + 1]) == wanted]
            if not options or len(path) == nodes:
                break
            path.append(options[0])
        assert int(count[row]) == len(path) - 1
        assert accept_index[row, : len(path)].tolist() == [row * nodes + node for node in path]
        assert [int(predicts[row * nodes + node]) for node in path] == [int(target[row, node]) for node in path]


def test_other_mask_layouts_are_refused():
    one = torch.ones(1, 2, dtype=torch.long)
    with pytest.raises(NotImplementedError, match="FULL_MASK"):
        speculative_tree.build_tree(one, one, one[0], one, one, one, one, one, 1, 1, 2, 1)
