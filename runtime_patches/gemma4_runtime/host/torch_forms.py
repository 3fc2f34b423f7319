"""Small kernels of SGLang's in torch, where Triton's interpreter or a CPU has none.

| function                 | in the place of                                                                           |
|--------------------------|-------------------------------------------------------------------------------------------|
| softcap_inplace          | final logit softcapping: the interpreter has no libdevice.tanh                            |
| apply_vocab_mask         | xgrammar's Triton form of a grammar's mask, which SGLang calls and which refuses a CPU    |
| route                    | below                                                                                     |
| assign_extend_cache_locs | which KV slots a verification writes: SGLang has a kernel for GPUs and nothing on a CPU   |

The router's learned scale is folded by SGLang into the weight of a norm that is marked as having none. CUDA's kernel
multiplies by the weight all the same; the torch form of that norm, which a CPU and ROCm run, does not, so tokens go to
other experts there. Upstream: https://github.com/sgl-project/sglang/pull/32131 (closed), for a CPU; with a release that
has it this can go.
"""

from __future__ import annotations

from typing import Any

import torch


def softcap_inplace(logits: torch.Tensor, cap: float) -> torch.Tensor:
    """`logits <- cap * tanh(logits / cap)` in place, in fp32 as the kernel does. logits: [tokens, vocab]."""
    return logits.copy_(torch.tanh(logits.float() / cap) * cap)


def apply_vocab_mask(grammar: Any, logits: torch.Tensor, vocab_mask: torch.Tensor) -> None:
    """Tokens that the grammar forbids become -inf in place. logits: [rows, vocabulary]; vocab_mask: int32 bits."""
    from xgrammar import apply_token_bitmask_inplace

    apply_token_bitmask_inplace(logits, vocab_mask)


def route(router: Any, x: Any) -> Any:
    """Router logits [T, E] of hidden states [T, H], as `Gemma4Router.forward` gives them on CUDA."""
    if not router._scale_fused:
        router.fuse_scale()
    logits, _ = router.proj(router.norm(x) * router.norm.weight)
    return logits


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
