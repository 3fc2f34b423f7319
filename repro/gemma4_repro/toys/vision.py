"""toy-e4b with a vision tower that something can be held against, and pictures for it; made in about a second.

toy-e4b's own has one layer and a table of ones, which gives every patch one position. This one has random tables,
layer scalars, clips of its own, standardisation, and as few soft tokens per picture as the processor offers.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from transformers import AutoModelForImageTextToText, Gemma4Config, Gemma4Processor, Gemma4VisionConfig

from gemma4_repro.toys.locate import toy_path

SOFT_TOKENS = 70
PATCHES = 9 * SOFT_TOKENS
TABLE = 160  # positions; no picture of 630 patches that is drawn for it is longer


def vision_config() -> Gemma4VisionConfig:
    return Gemma4VisionConfig(
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=16,
        position_embedding_size=TABLE,
        standardize=True,
    )


def make_toy(folder: Path, seed: int = 0) -> Path:
    """Return the checkpoint, written to `folder`: toy-e4b's trained text, a random vision tower and the processor."""
    text = AutoModelForImageTextToText.from_pretrained(toy_path("toy-e4b"), dtype=torch.float32)
    fields: dict[str, Any] = text.config.to_dict() | {"vision_config": vision_config()}
    config = Gemma4Config(**fields)
    config.architectures = ["Gemma4ForConditionalGeneration"]
    # SGLang's processor reads this name.
    config.eoa_token_id = json.loads((toy_path("toy-e4b") / "config.json").read_text())["eoa_token_id"]
    model = type(text)(config)
    model.load_state_dict({name: t for name, t in text.state_dict().items() if "vision" not in name}, strict=False)
    draw_vision(model, seed)
    model.save_pretrained(folder)
    processor = Gemma4Processor.from_pretrained(toy_path("toy-e4b"))
    processor.image_processor.max_soft_tokens = SOFT_TOKENS
    processor.image_seq_length = SOFT_TOKENS
    processor.save_pretrained(folder)
    return folder


@torch.no_grad()
def draw_vision(model: torch.nn.Module, seed: int) -> None:
    """Weights of the order of 1 at a layer's output, and nothing at a value that a comparison could not see."""
    generator = torch.Generator().manual_seed(seed)
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    for name, tensor in tensors.items():
        if "vision" not in name or not tensor.is_floating_point():
            continue
        noise = torch.randn(tensor.shape, generator=generator)
        if name.endswith(("layer_scalar", "std_scale")) or "norm" in name:
            tensor.copy_(1 + 0.2 * noise)
        elif "position_embedding_table" in name or name.endswith("std_bias"):
            tensor.copy_(noise)
        elif tensor.dim() == 2:
            tensor.copy_(noise * tensor.shape[1] ** -0.5)


def picture(width: int, height: int, seed: int) -> Image.Image:
    """Noise over a slope of colours, so that no two patches are alike."""
    rng = np.random.default_rng(seed)
    slope = np.linspace(0, 1, width)[None, :, None] * rng.uniform(0.2, 1, 3)
    return Image.fromarray(((slope + rng.uniform(0, 1, (height, width, 3))) / 2 * 255).astype(np.uint8))
