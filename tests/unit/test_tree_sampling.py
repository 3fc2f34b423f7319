"""Sampled verification of a draft tree in torch: which tokens come out, and how often."""

from collections import Counter

import torch

from gemma4_runtime.host.tree_sampling import sample_tree, top_k_renorm, top_p_renorm

VOCABULARY = 5
CHAIN = ([7, 1, 2], [1, 2, -1], [-1, -1, -1])
"""Candidates, the first child and the next sibling of each node: root, its draft 1, and 2 after it."""
SIBLINGS = ([7, 1, 2], [1, -1, -1], [-1, 2, -1])
"""The root has two drafts, 1 and 2."""


def verify(tree, target, uniform, final, steps=3, **thresholds):
    """Verify one request's tree; target [nodes, vocabulary]. Returns the tokens that come out and the slots taken."""
    candidates, child, sibling = (torch.tensor([row]) for row in tree)
    nodes = candidates.shape[1]
    # Slots are no nodes: another request's lie before this one's.
    slots = torch.arange(nodes)[None] + nodes
    predicts = torch.full((2 * nodes,), -1)
    accepted = torch.full((1, steps), -1)
    count = torch.full((1,), -1)
    sample_tree(
        predicts,
        accepted,
        count,
        candidates,
        slots,
        child,
        sibling,
        torch.tensor([uniform]),
        torch.tensor([final]),
        target[None].clone(),
        torch.zeros(1, nodes, VOCABULARY),
        **thresholds,
    )
    taken = [slot for slot in accepted[0].tolist() if slot != -1]
    assert len(taken) == count.item() + 1
    assert predicts[:nodes].eq(-1).all()
    return predicts[taken].tolist(), [slot - nodes for slot in taken]


def rows(*likely: dict[int, float]) -> torch.Tensor:
    found = torch.zeros(len(likely), VOCABULARY)
    for row, chances in zip(found, likely, strict=True):
        for token, chance in chances.items():
            row[token] = chance
    return found


class TestAChain:
    target = rows({1: 0.8, 3: 0.2}, {2: 0.5, 4: 0.5}, {0: 1.0})

    def test_drafts_that_are_taken_are_followed_by_the_token_after_the_last(self):
        assert verify(CHAIN, self.target, [0.7, 0.4, 0.0], 0.5) == ([1, 2, 0], [0, 1, 2])

    def test_after_a_refusal_what_was_refused_is_not_drawn(self):
        assert verify(CHAIN, self.target, [0.7, 0.6, 0.0], 0.1) == ([1, 4], [0, 1])
        assert verify(CHAIN, self.target, [0.9, 0.0, 0.0], 0.0) == ([3], [0])

    def test_no_more_are_taken_than_there_are_steps(self):
        assert verify(CHAIN, self.target, [0.0, 0.0, 0.0], 0.9, steps=2) == ([1, 4], [0, 1])

    def test_a_likely_token_is_taken_whatever_is_drawn_where_a_threshold_says_so(self):
        assert verify(CHAIN, self.target, [0.99, 0.99, 0.0], 0.9, threshold_single=0.8)[0] == [1, 4]

    def test_chances_are_held_against_a_share_of_what_is_drawn(self):
        assert verify(CHAIN, self.target, [0.99, 0.99, 0.0], 0.5, threshold_acc=0.5)[0] == [1, 2, 0]


class TestSiblings:
    target = rows({1: 0.3, 2: 0.3, 4: 0.4}, {3: 1.0}, {0: 1.0})

    def test_the_second_has_its_chance_after_the_first(self):
        assert verify(SIBLINGS, self.target, [0.2, 0.0, 0.0], 0.5) == ([1, 3], [0, 1])
        assert verify(SIBLINGS, self.target, [0.5, 0.0, 0.0], 0.5) == ([2, 0], [0, 2])

    def test_neither_is_drawn_once_both_are_refused(self):
        assert verify(SIBLINGS, self.target, [0.7, 0.0, 0.0], 0.0) == ([4], [0])

    def test_over_all_draws_tokens_come_out_as_often_as_the_target_says(self):
        steps = 50
        places = [(0.5 + place) / steps for place in range(steps)]
        found = Counter(
            verify(SIBLINGS, self.target, [uniform, 0.0, 0.0], final)[0][0] for uniform in places for final in places
        )
        for token in range(VOCABULARY):
            assert abs(found[token] / steps**2 - self.target[0, token].item()) < 0.011, token


def test_of_the_likeliest_each_row_keeps_its_own_number():
    probs = torch.tensor([[0.1, 0.4, 0.3, 0.2], [0.1, 0.4, 0.3, 0.2]])
    found = top_k_renorm(probs, torch.tensor([2, 1]))
    torch.testing.assert_close(found, torch.tensor([[0.0, 4 / 7, 3 / 7, 0.0], [0.0, 1.0, 0.0, 0.0]]))


def test_the_fewest_that_reach_the_share_are_kept():
    probs = torch.tensor([[0.1, 0.4, 0.3, 0.2]] * 3)
    found = top_p_renorm(probs, torch.tensor([0.3, 0.6, 1.0]))
    wanted = torch.tensor([[0.0, 1.0, 0.0, 0.0], [0.0, 4 / 7, 3 / 7, 0.0], [0.1, 0.4, 0.3, 0.2]])
    torch.testing.assert_close(found, wanted)
