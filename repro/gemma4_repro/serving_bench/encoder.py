"""The vision encoder alone, timed within a server. SGLang imports this in the scheduler's process, by name.

Called as draw.py's functions are. What was measured is a line of JSON in the file that the server's environment names.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import torch
from sglang.srt.managers.schedule_batch import Modality, MultimodalDataItem

from gemma4_repro.serving_bench.loads import ENCODER_FILE

_SAMPLES = 5
# What Gemma-4's processor makes of a picture of 4 to 3: whole groups of 3 by 3 patches, padded to 2520.
_PATCHES, _WIDTH, _HEIGHT, _VALUES = 2520, 57, 42, 16 * 16 * 3
_KEPT = 512
"""Values of the soft tokens that are compared."""


@torch.no_grad()
def _encode(model: Any, pictures: int) -> None:
    generator = torch.Generator().manual_seed(pictures)
    positions = torch.full((1, _PATCHES, 2), -1)
    grid = torch.cartesian_prod(torch.arange(_HEIGHT), torch.arange(_WIDTH)).flip(-1)
    positions[0, : len(grid)] = grid
    made = [torch.rand(1, _PATCHES, _VALUES, generator=generator) for _ in range(pictures)]
    times = []
    for number in range(_SAMPLES + 1):
        # New items: SGLang and its patches may keep what they have worked out on an item.
        items = [
            MultimodalDataItem(
                modality=Modality.IMAGE, feature=pixels, model_specific_data={"image_position_ids": positions}
            )
            for pixels in made
        ]
        _wait()
        started = time.perf_counter()
        features = model.get_image_feature(items)
        _wait()
        if number:
            times.append(time.perf_counter() - started)
    flat = features.flatten().float()
    kept = flat[:: max(1, flat.numel() // _KEPT)][:_KEPT].tolist()
    line = {"pictures": pictures, "seconds": times, "soft_tokens": features.shape[0], "values": kept}
    with Path(os.environ[ENCODER_FILE]).open("a") as file:
        file.write(json.dumps(line) + "\n")


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def encode_1(model: Any, named_tensors: list[tuple[str, Any]]) -> None:
    _encode(model, 1)


def encode_6(model: Any, named_tensors: list[tuple[str, Any]]) -> None:
    _encode(model, 6)


def encode_24(model: Any, named_tensors: list[tuple[str, Any]]) -> None:
    _encode(model, 24)
