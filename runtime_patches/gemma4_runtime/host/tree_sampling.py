"""Torch forms of sgl_kernel's sampled verification of draft trees, which exist for GPUs only.

A tree is walked from its root. A draft is taken with the target's probability of it; what was refused on the way is
left out when the token after the last one that was taken is drawn.
"""

from __future__ import annotations

import torch


def top_k_renorm(probs: torch.Tensor, top_k: torch.Tensor) -> torch.Tensor:
    """Zero all but the top_k [rows] likeliest of probs [rows, vocabulary], and have each row add up to 1 again."""
    ranks = probs.argsort(dim=-1, descending=True).argsort(dim=-1)
    return _renormed(probs.masked_fill(ranks >= top_k.to(ranks.dtype)[:, None], 0.0))


def top_p_renorm(probs: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    """Keep of probs [rows, vocabulary] the fewest that reach top_p [rows] together."""
    ordered, order = probs.sort(dim=-1, descending=True)
    ahead = ordered.cumsum(dim=-1) - ordered
    kept = torch.zeros_like(probs).scatter(-1, order, ordered.masked_fill(ahead >= top_p[:, None], 0.0))
    return _renormed(kept)


def _renormed(probs: torch.Tensor) -> torch.Tensor:
    return probs / probs.sum(dim=-1, keepdim=True)


def sample_tree(
    predicts: torch.Tensor,
    accept_index: torch.Tensor,
    accept_token_num: torch.Tensor,
    candidates: torch.Tensor,
    retrive_index: torch.Tensor,
    retrive_next_token: torch.Tensor,
    retrive_next_sibling: torch.Tensor,
    uniform_samples: torch.Tensor,
    uniform_samples_for_final_sampling: torch.Tensor,
    target_probs: torch.Tensor,
    draft_probs: torch.Tensor,
    threshold_single: float = 1.0,
    threshold_acc: float = 1.0,
    deterministic: bool = True,
) -> None:
    """Fill the first three in place; names are those of the kernel.

    predicts [requests*nodes], accept_index [requests, steps], accept_token_num [requests] (the bonus token not
    counted), candidates, retrive_*, uniform_samples [requests, nodes], the final samples [requests], probabilities
    [requests, nodes, vocabulary].
    """
    for row in range(candidates.shape[0]):
        tokens, slots = candidates[row].tolist(), retrive_index[row].tolist()
        child, sibling = retrive_next_token[row].tolist(), retrive_next_sibling[row].tolist()
        accept_index[row, 0] = slots[0]
        accepted = last = 0
        while accepted + 1 < accept_index.shape[1]:
            chance, node = 0.0, child[last]
            while node != -1:
                single = float(target_probs[row, last, tokens[node]])
                chance += single
                if float(uniform_samples[row, last]) <= chance / threshold_acc or single >= threshold_single:
                    break
                draft_probs[row, last, tokens[node]] = single
                node = sibling[node]
            if node == -1:
                break
            predicts[slots[last]] = tokens[node]
            accepted, last = accepted + 1, node
            accept_index[row, accepted] = slots[node]
        accept_token_num[row] = accepted
        left = (target_probs[row, last] - draft_probs[row, last]).clamp(min=0)
        drawn = (left.cumsum(0) > float(uniform_samples_for_final_sampling[row]) * left.sum()).int()
        predicts[slots[last]] = drawn.argmax()
