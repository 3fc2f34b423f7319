"""Hooks of `vision-batching` in the vision tower: items to as few calls of tower and embedder as can be."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from gemma4_runtime.current import switched_on
from gemma4_runtime.fusion.paths import PATHS
from gemma4_runtime.release import VisionSdpaAttention
from gemma4_runtime.vision.budget import budget_bytes, frame_bytes
from gemma4_runtime.vision.eligible import BATCHED, BATCHING, backend_of, batching_reason
from gemma4_runtime.vision.encode import features, slots_for, tower_in_force
from gemma4_runtime.vision.walk import Frame


def around_feature(original: Callable[..., Any], model: Any, items: list[Any]) -> Tensor:
    """Run around `get_image_feature` and `get_video_feature`: soft tokens [N, H] of all items in their order."""
    slots = slots_for(BATCHING, batching_reason, model, items)
    if slots is None:
        return original(model, items)
    PATHS.took(BATCHING, BATCHED)
    return features(model, slots, tower_in_force(model.vision_tower), partial(_frames_per_call, model))


def around_attention(
    original: Callable[..., Any],
    attention: Any,
    hidden_states: Tensor,
    cos: Tensor,
    sin: Tensor,
    attention_mask: Any = None,
) -> Tensor:
    """Run around `Gemma4VisionAttention.forward`: SGLang's SDPA asserts one frame per call, and can do more."""
    backend = attention.qkv_backend
    if len(hidden_states) == 1 or not (isinstance(backend, VisionSdpaAttention) and backend.flatten_batch):
        return original(attention, hidden_states, cos, sin, attention_mask)
    backend.flatten_batch = False
    try:
        return original(attention, hidden_states, cos, sin, attention_mask)
    finally:
        backend.flatten_batch = True


def around_position_embeddings(
    original: Callable[..., Any], embedder: Any, patch_positions: Tensor, padding_positions: Tensor
) -> Tensor:
    """Run around `_position_embeddings`: rows of the table picked, where SGLang multiplies it by a one-hot of 10240.

    From patch_positions [F, P, 2] and padding_positions [F, P] bool to [F, P, h], to the bit: a product with 1 and sums
    with 0 are exact.
    """
    if not switched_on(BATCHING):
        return original(embedder, patch_positions, padding_positions)
    table = embedder.position_embedding_table
    columns, rows = patch_positions.clamp(min=0).unbind(-1)
    embeddings = torch.stack((table[0][columns], table[1][rows]), dim=1).sum(dim=1)
    return torch.where(padding_positions.unsqueeze(-1), 0.0, embeddings)


def around_pooling(
    original: Callable[..., Any], pooler: Any, x: Tensor, patch_positions: Tensor, length: int
) -> tuple[Tensor, Tensor]:
    """Run around `_avg_pool_by_positions`: frame by frame on a CPU, where the sums of a product depend on the batch."""
    if x.device.type != "cpu" or len(x) == 1:
        return original(pooler, x, patch_positions, length)
    each = [original(pooler, *one, length) for one in zip(x.split(1), patch_positions.split(1), strict=True)]
    pooled, masks = zip(*each, strict=True)
    return torch.cat(pooled), torch.cat(masks)


def _frames_per_call(model: Any, frame: Frame) -> int:
    tower = model.vision_tower
    patches, width = frame.pixels.shape
    each = frame_bytes(
        tower.config,
        patches,
        width,
        element_size=model.language_model.dtype().itemsize,
        masked=isinstance(backend_of(tower), VisionSdpaAttention),
    )
    return max(1, budget_bytes(tower.device) // each)
