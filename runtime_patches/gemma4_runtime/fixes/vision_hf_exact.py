"""Fix: the vision tower sees a frame's patches and no padding, as in transformers.

The processor pads every image to one number of patches. On CUDA the release's vision attention ignores its mask, so
patches attend to padding; on every device its pooling adds what became of the padding to the first soft token of each
image; and it pools in the model's dtype where transformers pools in fp32. Open up to 0.5.23. Not a default: it changes
what a server of this release says about images.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from gemma4_runtime.fusion.paths import after_internal_state
from gemma4_runtime.vision.eligible import EXACT, packing_reason
from gemma4_runtime.vision.encode import features, slots_for, tower_in_force
from gemma4_runtime.vision.packed import Packing, attend_packed

__all__ = ["after_internal_state", "around_attention", "around_feature"]


def around_feature(original: Callable[..., Any], model: Any, items: list[Any]) -> Tensor:
    """Run around `get_image_feature` and `get_video_feature`: soft tokens [N, H] of all items in their order.

    `vision-batching` is ahead of it.
    """
    slots = slots_for(EXACT, packing_reason, model, items)
    if slots is None:
        return original(model, items)
    return features(model, slots, tower_in_force(model.vision_tower), lambda frame: 1)


def around_attention(
    original: Callable[..., Any],
    attention: Any,
    hidden_states: Tensor,
    cos: Tensor,
    sin: Tensor,
    attention_mask: Any = None,
) -> Tensor:
    """Run around `Gemma4VisionAttention.forward`: the packing of frames comes in the mask's place."""
    if isinstance(attention_mask, Packing):
        return attend_packed(attention, hidden_states, cos, sin, attention_mask)
    return original(attention, hidden_states, cos, sin, attention_mask)
