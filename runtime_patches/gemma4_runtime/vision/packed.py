"""The vision tower on real patches alone, packed frame behind frame: what transformers computes.

SGLang's release attends to padding on CUDA (its kernels take no mask), adds padding to the first soft token of each
frame when it pools, and pools in the model's dtype. transformers masks, zeroes and pools in fp32. Without padding in
the batch there is nothing to mask.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from einops import rearrange
from torch import Tensor

from gemma4_runtime.release import VisionSdpaAttention, apply_multidimensional_rope
from gemma4_runtime.vision.soft_tokens import cell_of_patch, is_padding, pooling_side


@dataclass(frozen=True)
class Packing:
    """Stands where a layer's attention mask does. ends: where each frame ends; bounds: int32 [F + 1] on the device."""

    ends: tuple[int, ...]
    bounds: Tensor


def encode_packed(tower: Any, pixels: Tensor, positions: Tensor) -> tuple[Tensor, list[int]]:
    """pixels: [F, P, D] on the tower's device; positions: [F, P, 2]. Soft tokens [N, h], and how many per frame."""
    host = positions.cpu()
    real = ~is_padding(host)
    length = host.shape[1] // tower.pooling_kernel_size**2
    side = pooling_side(host.shape[1], length)
    rows = real.view(-1).nonzero().squeeze(1).to(pixels.device)
    packed_positions = positions.to(pixels.device).flatten(0, 1).index_select(0, rows).unsqueeze(0)
    embedded = tower.patch_embedder(
        pixels.flatten(0, 1).index_select(0, rows).unsqueeze(0),
        packed_positions,
        torch.zeros(1, len(rows), dtype=torch.bool, device=pixels.device),
    )
    ends = tuple(real.sum(dim=1).cumsum(0).tolist())
    bounds = torch.tensor((0, *ends), dtype=torch.int32).to(pixels.device)
    hidden = tower.encoder(embedded, Packing(ends, bounds), packed_positions)
    cells = cell_of_patch(host, side) + torch.arange(len(host)).unsqueeze(1) * length
    pooled, frames = _pool(hidden[0], cells[real], side)
    tokens = pooled * tower.pooler.root_hidden_size
    if tower.standardize:
        tokens = (tokens - tower.std_bias) * tower.std_scale
    return tokens, torch.bincount(frames // length, minlength=len(host)).tolist()


def attend_packed(attention: Any, hidden: Tensor, cos: Tensor, sin: Tensor, packing: Packing) -> Tensor:
    """`Gemma4VisionAttention.forward` on frames that lie behind each other. hidden: [1, R, h]; cos, sin: [1, R, d]."""
    norms = attention.q_norm, attention.k_norm, attention.v_norm
    q, k, v = (
        norm(rows.reshape(-1, attention.head_dim)).reshape(hidden.shape[1], -1, attention.head_dim)
        for rows, norm in zip(attention.qkv(hidden), norms, strict=True)
    )
    cos, sin = cos.transpose(0, 1), sin.transpose(0, 1)
    q, k = (apply_multidimensional_rope(rows, cos, sin) for rows in (q, k))
    backend = attention.qkv_backend
    common = {"bsz": 1, "attention_mask": None, "softmax_scale": 1.0}
    if isinstance(backend, VisionSdpaAttention):
        # It would build a mask of all frames' patches against all.
        frames = [slice(start, end) for start, end in pairwise((0, *packing.ends))]
        output = torch.cat(
            [
                backend(q=q[one], k=k[one], v=v[one], cu_seqlens=None, seq_len=one.stop - one.start, **common)
                for one in frames
            ]
        )
    else:
        output = backend(q=q, k=k, v=v, cu_seqlens=packing.bounds, seq_len=hidden.shape[1], **common)
    return attention.o_proj(rearrange(output, "s h d -> 1 s (h d)"))


def _pool(hidden: Tensor, cells: Tensor, side: int) -> tuple[Tensor, Tensor]:
    """Means in fp32. hidden: [R, h]; cells: [R] on the host. Tokens [N, h], and the cell of each, ascending."""
    order = cells.argsort(stable=True)
    found, lengths = cells[order].unique_consecutive(return_counts=True)
    rows = hidden.index_select(0, order.to(hidden.device)).float()
    sums = torch.segment_reduce(rows, "sum", lengths=lengths.to(hidden.device), axis=0)
    return (sums / side**2).to(hidden.dtype), found
