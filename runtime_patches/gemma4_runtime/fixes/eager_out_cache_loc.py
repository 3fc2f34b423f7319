"""Fix: a draft batch must not carry the target's out_cache_loc into eager input copies.

With CUDA graphs off, V1 verify leaves `batch.out_cache_loc` sized to the tokens it accepted, and prefill leaves it
sized to the prompt. The draft's ForwardBatch inherits it although the assistant writes no KV, and
`ModelRunner._eager_fb_view` copies it into a buffer of the draft's size: "size of tensor a (29) must match the size of
tensor b (30)". Fixed upstream in 0.5.15; this fix can go when the pin passes it.
"""

from __future__ import annotations

from typing import Any


def drop_out_cache_loc(result: Any, worker: Any, forward_batch: Any, **_unknown: Any) -> None:
    """Run after the draft batch is built and expanded: it writes nowhere. Padded DP batches need a tensor of zeros."""
    if forward_batch.out_cache_loc is None:
        return
    if getattr(forward_batch, "global_num_tokens_cpu", None) is not None:
        forward_batch.out_cache_loc = forward_batch.out_cache_loc.new_zeros(forward_batch.batch_size)
    else:
        forward_batch.out_cache_loc = None
