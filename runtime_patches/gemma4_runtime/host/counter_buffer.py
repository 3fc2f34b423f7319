"""Counters that trtllm-gen kernels share between blocks: their number depends on the device, and here there is none."""

from __future__ import annotations

import torch


def make_counter_buffer(device: torch.device, num_q_heads: int, max_batch_size: int) -> torch.Tensor:
    """Returns one byte that nothing reads, in the place of a buffer of zeroed counters, uint8."""
    return torch.zeros(1, dtype=torch.uint8, device=device)
