"""How many frames one call of the vision tower may have: memory that may be used, over what a frame takes at most."""

from __future__ import annotations

from typing import Any

import psutil
import torch

from gemma4_runtime import current

MIB = 1 << 20


def budget_bytes(device: torch.device) -> int:
    """GEMMA4_TRIAGE_VISION_BUDGET_MB, else half of what is free, and no more than a tenth of what there is."""
    if asked := asked_budget_bytes():
        return asked
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        # What the caching allocator holds and does not use is as good as free.
        free += torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    else:
        memory = psutil.virtual_memory()
        free, total = memory.available, memory.total
    return min(free // 2, total // 10)


def asked_budget_bytes() -> int:
    """Say what the setting says; 0 if it says nothing."""
    return current.settings().vision_budget_mb * MIB


def frame_bytes(config: Any, patches: int, patch_width: int, element_size: int, masked: bool) -> int:
    """Return an upper bound on what one more frame adds to the peak of a call, without weights and what comes out.

    `config` is the vision config; `masked` says that attention reads the mask of every pair of patches (the SDPA
    backend); SGLang makes one for any backend. The peak is in a layer's attention, in its MLP or in the pooling;
    `tests/unit/test_vision_budget.py` holds the bound against measured peaks.
    """
    heads = config.num_attention_heads * config.head_dim
    pixels = 4 * patch_width * element_size
    # The residual, and a norm, which computes in fp32 with three copies.
    stream = config.hidden_size * (2 * element_size + 3 * 4)
    attention = heads * (10 * element_size + 4 * 4)
    mlp = 7 * config.intermediate_size * element_size
    # One-hot weights in int64, fp32 twice and the model's own type, and their comparison with zero.
    pooling = patches // config.pooling_kernel_size**2 * (8 + 4 + 4 + element_size + 1)
    pairs = patches * (1 + (2 * element_size if masked else 0))
    return patches * (pixels + stream + max(attention + pairs, mlp, pooling))
