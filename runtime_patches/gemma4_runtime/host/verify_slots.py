"""Which KV slots a verification writes, by torch; SGLang has a kernel for it on GPUs and nothing on a CPU."""

from __future__ import annotations

import torch


def assign_extend_cache_locs(
    req_pool_indices: torch.Tensor,
    req_to_token: torch.Tensor,
    start_offset: torch.Tensor,
    end_offset: torch.Tensor,
    batch_size: int,
    draft_token_num: int,
    device: str,
) -> torch.Tensor:
    """Slots [requests * draft_token_num], int64: of row req_pool_indices[i], columns start_offset[i] and on."""
    columns = start_offset.to(torch.int64)[:, None] + torch.arange(draft_token_num, device=device)
    return req_to_token[req_pool_indices[:, None], columns].to(torch.int64).flatten()
