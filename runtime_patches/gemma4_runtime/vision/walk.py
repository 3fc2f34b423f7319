"""Multimodal items in the order of the prompt: what is embedded already, and frames that the tower has to encode."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gemma4_runtime.release import flatten_nested_list


@dataclass(frozen=True)
class Frame:
    """One image, or one frame of a video. pixels: [P, D], patches; positions: [P, 2] int64, x and y, -1 for padding."""

    pixels: Tensor
    positions: Tensor

    @property
    def bucket(self) -> tuple[Any, ...]:
        """Frames with the same one can be stacked."""
        return self.pixels.shape, self.positions.shape, self.pixels.dtype, self.pixels.device, self.positions.device


Slot = Tensor | list[Frame]
"""A place in the output: soft tokens [N, H] that came embedded, or frames whose soft tokens follow each other."""


class NoPositions(ValueError):
    """Pixels without positions; SGLang's own function says what is missing."""


def walk(items: Iterable[Any], hidden_size: int) -> list[Slot]:
    """Say what stands where, as `Gemma4ForConditionalGeneration.get_image_feature` and `get_video_feature` find it.

    A tensor of the language model's width, `hidden_size`, is taken for embedded, as in SGLang.

    Raises:
        NoPositions: pixels have none.
    """
    return [slot for item in items for slot in _slots(item, hidden_size)]


def _slots(item: Any, hidden_size: int) -> Iterator[Slot]:
    attribute = "video_position_ids" if item.is_video() else "image_position_ids"
    positions = flatten_nested_list([getattr(item, attribute, None)])
    for index, pixels in enumerate(flatten_nested_list([item.feature])):
        if pixels.dim() in (2, 3) and pixels.shape[-1] == hidden_size:
            yield pixels
        elif index >= len(positions) or positions[index] is None:
            raise NoPositions(attribute)
        else:
            yield [Frame(*one) for one in zip(_frames(pixels), _frames(positions[index]), strict=True)]


def _frames(tensor: Tensor) -> tuple[Tensor, ...]:
    """[..., P, D] to so many of [P, D]."""
    return torch.unbind(tensor.reshape(-1, *tensor.shape[-2:]))
