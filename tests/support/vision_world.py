"""SGLang's own Gemma4ForConditionalGeneration on the vision toy, without an engine: one rank, weights loaded by it."""

import socket
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from sglang.srt.configs.model_config import ModelConfig
from sglang.srt.distributed import parallel_state
from sglang.srt.layers import dp_attention
from sglang.srt.managers.schedule_batch import Modality, MultimodalDataItem
from sglang.srt.models.gemma4_mm import Gemma4ForConditionalGeneration
from sglang.srt.server_args import ServerArgs
from transformers import AutoProcessor

from gemma4_repro.toys.vision import picture
from published import IN_A_CONTEXT, process_of_one_rank


@contextmanager
def one_rank(folder: Path, device: str = "cpu") -> Iterator[ModelConfig]:
    """Yield the groups and arguments that SGLang's layers ask for; taken down again."""
    arguments = ServerArgs(model_path=str(folder), device=device, dtype="float32", attention_backend="triton")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with process_of_one_rank(arguments):
        try:
            parallel_state.init_distributed_environment(
                world_size=1, rank=0, local_rank=0, distributed_init_method=f"tcp://127.0.0.1:{port}", backend="gloo"
            )
            parallel_state.initialize_model_parallel()
            config = ModelConfig.from_server_args(arguments)
            # A later release asks nothing of the model here.
            dp_attention.initialize_dp_attention(arguments, *(() if IN_A_CONTEXT else (config,)))
            yield config
        finally:
            parallel_state.destroy_model_parallel()
            parallel_state.destroy_distributed_environment()


def load_model(config: ModelConfig) -> Gemma4ForConditionalGeneration:
    """Load it within `one_rank`, which gives the config."""
    model = Gemma4ForConditionalGeneration(config.hf_config)
    model.load_weights(load_file(Path(config.model_path) / "model.safetensors").items())
    return model.eval()


@contextmanager
def count_calls(model: Gemma4ForConditionalGeneration) -> Iterator[Counter[str]]:
    """Count calls of the tower's layers as a whole, which the exact form has too, and of the embedder."""
    counted: Counter[str] = Counter()
    modules = {"tower": model.vision_tower.encoder, "embedder": model.embed_vision}
    handles = [
        module.register_forward_hook(lambda *_, name=name: counted.update([name])) for name, module in modules.items()
    ]
    yield counted
    for handle in handles:
        handle.remove()


def processed(folder: Path, sizes: list[tuple[int, int]], **kwargs: Any) -> list[MultimodalDataItem]:
    """Return an item per picture of these sizes, as SGLang's scheduler gets them from Gemma-4's processor."""
    found = AutoProcessor.from_pretrained(folder).image_processor(
        [picture(*size, seed) for seed, size in enumerate(sizes)], return_tensors="pt", **kwargs
    )
    return [
        image_item(pixels.unsqueeze(0), positions.unsqueeze(0))
        for pixels, positions in zip(found["pixel_values"], found["image_position_ids"], strict=True)
    ]


def image_item(pixels: torch.Tensor, positions: torch.Tensor | None) -> MultimodalDataItem:
    data = {} if positions is None else {"image_position_ids": positions}
    return MultimodalDataItem(modality=Modality.IMAGE, feature=pixels, model_specific_data=data)


def video_item(pixels: torch.Tensor, positions: torch.Tensor) -> MultimodalDataItem:
    return MultimodalDataItem(
        modality=Modality.VIDEO, feature=pixels, model_specific_data={"video_position_ids": positions}
    )
