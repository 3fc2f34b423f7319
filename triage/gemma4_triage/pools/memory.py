"""What is left for pools on one GPU: model_runner_kv_cache_mixin.py, _profile_available_bytes.

SGLang takes `mem_fraction_static` of what was free before the model was loaded, and gives the pools what the weights
leave of it: free before x fraction - weights.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from gemma4_triage.errors import UsageMistake
from gemma4_triage.pools.as_written import gib_text

ASSUMED_FRACTION = 0.85


@dataclass(frozen=True)
class Memory:
    """pools_bytes: for both pools on one GPU. how: the sum it comes from, in words."""

    pools_bytes: int
    how: str


def pools_memory(gpu_bytes: int, fraction: float, weights_bytes: int) -> Memory:
    """gpu_bytes: free on one GPU before the start. weights_bytes: on one GPU.

    Raises:
        UsageMistake: the weights leave nothing.
    """
    left = int(gpu_bytes * fraction) - weights_bytes
    how = f"{gib_text(gpu_bytes)} x {fraction:g} - weights {gib_text(weights_bytes)}"
    if left <= 0:
        raise UsageMistake(
            f"nothing is left for pools: {how} is {left} bytes",
            "SGLang says 'Not enough memory' then; raise --mem-fraction, or spread the weights with --tp",
        )
    return Memory(left, how)


def weights_beside(config: Path, tensor_parallel: int) -> int | None:
    """Bytes of the *.safetensors in the config's folder, per GPU; None if there are none."""
    folder = config if os.path.isdir(config) else config.parent
    try:
        total = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    except OSError:
        return None
    return total // tensor_parallel or None
