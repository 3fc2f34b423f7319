"""SGLang pads MoE sizes for CPU tensor parallelism and does not expect a dense model, whose MoE size is None."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def update_intermediate_size(
    original: Callable[..., Any], model_config: Any, attr_name: str, intermediate_padding_size: int
) -> Any:
    """Leave a size that is None alone; the original raises TypeError (None % int) on a dense Gemma-4."""
    hf_config = getattr(model_config, "hf_config", None)
    for owner in (getattr(hf_config, "text_config", None), hf_config, model_config):
        if owner is not None and hasattr(owner, attr_name):
            if getattr(owner, attr_name) is None:
                return model_config
            break
    return original(model_config, attr_name, intermediate_padding_size)
