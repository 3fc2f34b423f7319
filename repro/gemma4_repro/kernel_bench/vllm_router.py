"""vLLM's router kernel for Gemma-4, out of a file of vLLM's that the user names: nothing of it is in this repository.

The module needs all of vLLM to be imported; its kernel and the function that launches it need torch and Triton only.
"""

from __future__ import annotations

import functools
import importlib.util
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch

from gemma4_repro.kernel_bench.function_sources import function_sources

KERNEL, LAUNCHER = "_gemma4_routing_kernel", "gemma4_fused_routing_kernel_triton"
_HEAD = "import torch\nimport triton\nimport triton.language as tl\n\n"
Router = Callable[[torch.Tensor, int, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]


@functools.cache
def vllm_router(path: Path) -> Router:
    """(logits [T, E], top_k, scale [E]) to (weights [T, top_k] fp32, ids int32).

    Raises:
        ImportError: the file does not hold the two functions.
        OSError, SyntaxError: it cannot be read.
    """
    sources = function_sources(path.read_text(encoding="utf-8"), (KERNEL, LAUNCHER))
    if len(sources) < 2:
        raise ImportError(f"{path.name} holds no {KERNEL} and {LAUNCHER}")
    # Triton reads a kernel's source from its file, perhaps at the first launch: the folder lives with the function.
    folder = tempfile.TemporaryDirectory()
    module_path = Path(folder.name) / "vllm_router_kernel.py"
    module_path.write_text(_HEAD + "\n\n\n".join(sources.values()) + "\n", encoding="utf-8")
    spec = importlib.util.spec_from_file_location(module_path.stem, module_path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    router = getattr(module, LAUNCHER)
    router.folder = folder
    return router
