"""What of a vision tower can be batched or packed. A reason is a text for the record of paths; None: there is none."""

from __future__ import annotations

from typing import Any

from gemma4_runtime.fusion.eligible import server_reason
from gemma4_runtime.release import (
    Gemma4VisionEncoder,
    VisionFlash3Attention,
    VisionFlash4Attention,
    VisionSdpaAttention,
    VisionTritonAttention,
    envs,
)
from gemma4_runtime.release.ranks import attention_ranks
from gemma4_runtime.settings import VISION_BUDGET
from gemma4_runtime.vision.budget import asked_budget_bytes

BATCHING, EXACT = "vision-batching", "vision-hf-exact"
BATCHED, PACKED = "batched", "padding left out"
"""Paths of the two; every other one is SGLang's own."""

_TAKES_BOUNDS = (VisionFlash3Attention, VisionFlash4Attention, VisionTritonAttention)


def backend_of(tower: Any) -> Any:
    """Return SGLang's attention behind the layers, one class for all of them."""
    return tower.encoder.layers[0].self_attn.qkv_backend


def tower_reason(tower: Any) -> str | None:
    """Say why this tower must run as SGLang runs it."""
    if type(tower) is not Gemma4VisionEncoder:
        return f"a {type(tower).__name__}"
    if tower.pooling_kernel_size == 1:
        return "no pooling: SGLang and transformers return the padding alone"
    if envs.SGLANG_VIT_ENABLE_CUDA_GRAPH.get():
        return "SGLANG_VIT_ENABLE_CUDA_GRAPH"
    return None


def batching_reason(tower: Any) -> str | None:
    """Say why its frames must go one by one. Ranks have to cut a batch alike, and each has memory of its own."""
    if reason := tower_reason(tower) or server_reason():
        return reason
    if attention_ranks() > 1 and not asked_budget_bytes():
        return f"tensor parallel ranks without {VISION_BUDGET}"
    return None


def packing_reason(tower: Any) -> str | None:
    """Say why its attention takes no frames that lie behind each other."""
    if reason := tower_reason(tower):
        return reason
    backend = backend_of(tower)
    takes = isinstance(backend, (VisionSdpaAttention, *_TAKES_BOUNDS))
    return None if takes else f"attention by {type(backend).__name__}"
