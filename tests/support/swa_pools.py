"""SGLang's own SWA pool pair and its allocator on the CPU."""

import torch
from sglang.srt.mem_cache.allocator.swa import SWATokenToKVPoolAllocator
from sglang.srt.mem_cache.swa_memory_pool import SWAKVPool

from gemma4_runtime.releases import BASE, installed_or_base


def make_swa_allocator(
    full_tokens, swa_tokens, page_size, *, heads=1, head_dim=8, swa_layers=(0,), full_layers=(1,), need_sort=False
):
    """Return the allocator of a float32 pool pair. Sizes in tokens, the dummy page not counted; layers by id."""
    pool = SWAKVPool(
        size=full_tokens,
        size_swa=swa_tokens,
        page_size=page_size,
        dtype=torch.float32,
        head_num=heads,
        head_dim=head_dim,
        swa_attention_layer_ids=list(swa_layers),
        full_attention_layer_ids=list(full_layers),
        device="cpu",
        **({"enable_kvcache_transpose": False} if installed_or_base() == BASE else {}),
    )
    return SWATokenToKVPoolAllocator(
        full_tokens, swa_tokens, page_size, torch.float32, "cpu", pool, need_sort=need_sort
    )
