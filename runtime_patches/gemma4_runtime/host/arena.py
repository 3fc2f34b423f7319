"""Lays the KV buffers of a pool pair in one arena, so that what lies beyond a buffer's end is a real neighbour.

On a GPU the caching allocator puts the buffers of a pool into shared segments, in order of allocation. A read past the
end of a sliding-window buffer therefore returns the next layer's keys and not an error. The sm90 device model needs
the same neighbourhood: SWA keys by layer, SWA values by layer, then the full pool's, as SWAKVPool allocates them.
"""

from __future__ import annotations

from typing import Any

import torch


def lay_in_arena(buffer_lists: list[list[torch.Tensor]]) -> torch.Tensor:
    """Replace every tensor in the lists, in place, by a view of one new flat tensor with the same contents.

    Returns: the arena, 1-D, of the tensors' common dtype.
    """
    tensors = [tensor for buffers in buffer_lists for tensor in buffers]
    arena = torch.zeros(sum(tensor.numel() for tensor in tensors), dtype=tensors[0].dtype)
    start = 0
    for buffers in buffer_lists:
        for index, tensor in enumerate(buffers):
            view = arena[start : start + tensor.numel()].view(tensor.shape)
            view.copy_(tensor)
            buffers[index] = view
            start += tensor.numel()
    return arena


def after_pool_init(result: Any, pool: Any, *args: Any, **kwargs: Any) -> None:
    """Run after SWAKVPool.__init__: re-home its buffers, refresh the pointer tables that SGLang derived from them."""
    swa, full = pool.swa_kv_pool, pool.full_kv_pool
    lay_in_arena([swa.k_buffer, swa.v_buffer, full.k_buffer, full.v_buffer])
    for child in (swa, full):
        keys = [tensor.data_ptr() for tensor in child.k_buffer]
        values = [tensor.data_ptr() for tensor in child.v_buffer]
        for name, pointers in (("k_data_ptrs", keys), ("v_data_ptrs", values), ("data_ptrs", keys + values)):
            table = getattr(child, name)
            table.copy_(torch.tensor(pointers, dtype=table.dtype))
