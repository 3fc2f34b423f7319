"""The silent form of the seed bug, on tensors: the draft's layers read whole pages that are not theirs."""

import torch

from gemma4_repro.toys.geometry import PAGE
from gemma4_repro.toys.recurrence import SharedKV, TargetStates


def _misread(states: torch.Tensor, source_page: torch.Tensor) -> torch.Tensor:
    """K or V [B, heads, T, dim] as read from the next row's pages, in the order of `source_page` [pages]."""
    length = states.shape[2]
    position = torch.arange(length)
    source = (source_page[position // PAGE] * PAGE + position % PAGE).clamp(max=length - 1)
    return states.roll(1, dims=0)[:, :, source]


def with_wrong_pages(states: TargetStates, kind: str, seed: int) -> TargetStates:
    """`states` with the shared KV of one layer type taken from another sequence, page by page and shuffled.

    Raises:
        ValueError: for a batch of one sequence, which has no other to read from.
    """
    rows, length = states.tokens.shape
    if rows < 2:
        raise ValueError("reading another sequence's pages needs a batch of at least 2 sequences")
    order = torch.randperm(-(-length // PAGE), generator=torch.Generator().manual_seed(seed))
    keys, values = states.shared_kv[kind]
    shared_kv: SharedKV = {**states.shared_kv, kind: (_misread(keys, order), _misread(values, order))}
    return TargetStates(states.tokens, states.hidden, states.logits, shared_kv)
