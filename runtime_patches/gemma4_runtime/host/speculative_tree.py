"""Torch forms of sgl_kernel's draft-tree construction and greedy tree verification, which exist for GPUs only."""

from __future__ import annotations

from typing import Any

import torch

_FULL_MASK = 0


def full_mask_mode() -> Any:
    """Returns the mode in which a row of the mask spans all keys of its request.

    Later releases ask their platform for the mode, and Triton's kernels read the layout of a GPU.
    """
    from gemma4_runtime.release import TreeMaskMode

    return TreeMaskMode.FULL_MASK


def build_tree(
    parent_list: torch.Tensor,
    selected_index: torch.Tensor,
    seq_lens: torch.Tensor,
    tree_mask: torch.Tensor,
    positions: torch.Tensor,
    retrieve_index: torch.Tensor,
    retrieve_next_token: torch.Tensor,
    retrieve_next_sibling: torch.Tensor,
    topk: int,
    depth: int,
    num_verify_tokens: int,
    tree_mask_mode: int = _FULL_MASK,
) -> None:
    """Fill the tree buffers in place. Node 0 of each tree is the bonus token; node i is the i-th selected draft.

    Shapes: parent_list [requests, *], selected_index [requests, nodes-1], seq_lens [requests], tree_mask flat, one row
    of seq_len + nodes per node; positions [requests*nodes]; the three retrieve buffers [requests, nodes], -1 filled.

    Raises:
        NotImplementedError: for a mask layout other than FULL_MASK.
    """
    if int(tree_mask_mode) != _FULL_MASK:
        raise NotImplementedError(f"the host engine builds FULL_MASK trees only, got mode {tree_mask_mode}")
    nodes = num_verify_tokens
    mask_start = 0
    for row, seq_len in enumerate(seq_lens.tolist()):
        selected = selected_index[row].tolist()
        parents = [-1]
        for index in selected:
            group = index // topk
            if group == 0:
                parents.append(0)
            else:
                parents.append(selected.index(int(parent_list[row, group])) + 1)
        visible = torch.zeros(nodes, nodes, dtype=torch.bool)
        last_child: dict[int, int] = {}
        for node, parent in enumerate(parents):
            visible[node] = visible[parent] if parent >= 0 else False
            visible[node, node] = True
            retrieve_index[row, node] = row * nodes + node
            positions[row * nodes + node] = seq_len + int(visible[node].sum()) - 1
            if parent < 0:
                continue
            if parent in last_child:
                retrieve_next_sibling[row, last_child[parent]] = node
            else:
                retrieve_next_token[row, parent] = node
            last_child[parent] = node
        width = seq_len + nodes
        block = tree_mask[mask_start : mask_start + nodes * width].view(nodes, width)
        block[:, :seq_len] = True
        block[:, seq_len:] = visible
        mask_start += nodes * width


def verify_tree_greedy(
    predicts: torch.Tensor,
    accept_index: torch.Tensor,
    accept_token_num: torch.Tensor,
    candidates: torch.Tensor,
    retrieve_index: torch.Tensor,
    retrieve_next_token: torch.Tensor,
    retrieve_next_sibling: torch.Tensor,
    target_predict: torch.Tensor,
    topk: int = -1,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Walk each tree from its root along drafts that equal the target's greedy token; fill the first three in place.

    predicts [requests*nodes], accept_index [requests, steps], accept_token_num [requests] (drafts accepted, bonus not
    counted), candidates and retrieve_* [requests, nodes], target_predict [requests, nodes] or flat.
    """
    target = target_predict.reshape(-1).tolist()
    for row in range(candidates.shape[0]):
        tokens, slots = candidates[row].tolist(), retrieve_index[row].tolist()
        child, sibling = retrieve_next_token[row].tolist(), retrieve_next_sibling[row].tolist()
        last = slots[0]
        accept_index[row, 0] = last
        accepted, node = 0, 0
        while accepted + 1 < accept_index.shape[1]:
            node = child[node]
            while node != -1 and tokens[node] != target[last]:
                node = sibling[node]
            if node == -1:
                break
            predicts[last] = target[last]
            accepted += 1
            last = slots[node]
            accept_index[row, accepted] = last
        accept_token_num[row] = accepted
        predicts[last] = target[last]
    return predicts, accept_index, accept_token_num
