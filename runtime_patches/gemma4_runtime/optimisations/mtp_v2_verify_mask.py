"""The mask that a graph's verification on Triton reads, with room for the draft behind the longest request.

SGLang makes room for whole contexts. A verification needs a context and the draft's own nodes, of each row, so that the
kernel that writes a full batch's mask at the end of its context writes behind it. Still so in 0.5.14.
"""

from __future__ import annotations

from typing import Any


def after_graph_state(result: Any, backend: Any, max_bs: int, max_num_tokens: int, *_: Any, **__: Any) -> None:
    """Run after Triton's `init_cuda_graph_state`. No request is longer than its row of slots."""
    mask = backend.cuda_graph_custom_mask
    if mask is not None and (room := max_num_tokens * backend.req_to_token.shape[1]) > mask.numel():
        backend.cuda_graph_custom_mask = mask.new_zeros(room)
