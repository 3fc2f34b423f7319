"""Frames through the vision tower in as few calls as memory allows, and through the embedder in one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from gemma4_runtime.current import switched_on
from gemma4_runtime.fusion.paths import PATHS
from gemma4_runtime.vision.eligible import EXACT, PACKED, packing_reason
from gemma4_runtime.vision.packed import encode_packed
from gemma4_runtime.vision.soft_tokens import rows_of_real
from gemma4_runtime.vision.walk import Frame, NoPositions, Slot, walk

Tower = Callable[[Any, Tensor, Tensor], tuple[Tensor, list[int]]]
"""Tower, pixels [F, P, D] on its device, positions [F, P, 2] to soft tokens [N, h] and their number per frame."""
Limit = Callable[[Frame], int]
"""How many frames of this shape one call may have, 1 or more."""


def slots_for(op: str, reason_of: Callable[[Any], str | None], model: Any, items: list[Any]) -> list[Slot] | None:
    """Return what the patch `op` has to encode; None where SGLang's own function is to do it, the reason on record."""
    if not switched_on(op):
        return None
    if reason := reason_of(model.vision_tower):
        PATHS.took(op, reason)
        return None
    try:
        return walk(items, model.config.text_config.hidden_size)
    except NoPositions:
        PATHS.took(op, "pixels without positions")
        return None


def features(model: Any, slots: list[Slot], tower: Tower, limit: Limit) -> Tensor:
    """[N, H]: the soft tokens of all slots in their order, as `get_image_feature` gives them; [0, H] for no slots."""
    if not slots:
        return _nothing(model)
    frames = [frame for slot in slots if isinstance(slot, list) for frame in slot]
    embedded = _embedded(model, frames, tower, limit) if frames else iter(())
    parts: list[Tensor] = []
    for slot in slots:
        parts += [next(embedded) for _ in slot] if isinstance(slot, list) else [slot.to(model.language_model.device)]
    return torch.cat(parts) if parts else _nothing(model)


def encode_padded(tower: Any, pixels: Tensor, positions: Tensor) -> tuple[Tensor, list[int]]:
    """Return SGLang's tower on a whole batch, padding and all; its bits."""
    pooled, _ = tower(pixels, positions.to(pixels.device))
    rows, counts = rows_of_real(positions.cpu(), pooled.shape[1])
    return pooled.flatten(0, 1).index_select(0, rows.to(pooled.device)), counts


def tower_in_force(tower: Any) -> Tower:
    """Return SGLang's, or the exact one if `vision-hf-exact` is on and the tower's attention can."""
    if not switched_on(EXACT):
        return encode_padded
    if reason := packing_reason(tower):
        PATHS.took(EXACT, reason)
        return encode_padded
    PATHS.took(EXACT, PACKED)
    return encode_packed


def _embedded(model: Any, frames: list[Frame], tower: Tower, limit: Limit) -> Iterator[Tensor]:
    """Return each frame's soft tokens [n, H], in the order of `frames`."""
    device, dtype = model.vision_tower.device, model.language_model.dtype()
    tokens: list[Tensor] = []
    counts: dict[int, int] = {}
    for chunk in _chunks(frames, limit):
        pixels = torch.stack([frames[number].pixels for number in chunk]).to(device=device, dtype=dtype)
        positions = torch.stack([frames[number].positions for number in chunk])
        found, found_counts = tower(model.vision_tower, pixels, positions)
        tokens.append(found)
        counts.update(zip(chunk, found_counts, strict=True))
    whole = model.embed_vision(inputs_embeds=torch.cat(tokens).unsqueeze(0)).squeeze(0)
    by_frame = dict(zip(counts, whole.split(list(counts.values())), strict=True))
    return (by_frame[number] for number in range(len(frames)))


def _chunks(frames: list[Frame], limit: Limit) -> Iterator[list[int]]:
    """Numbers of frames that go through the tower together: of one shape, no more than the limit of that shape."""
    buckets: dict[tuple[Any, ...], list[int]] = {}
    for number, frame in enumerate(frames):
        buckets.setdefault(frame.bucket, []).append(number)
    for numbers in buckets.values():
        most = limit(frames[numbers[0]])
        for start in range(0, len(numbers), most):
            yield numbers[start : start + most]


def _nothing(model: Any) -> Tensor:
    language = model.language_model
    return torch.empty(0, language.config.hidden_size, device=language.device, dtype=language.dtype())
