"""Per-layer inputs of a multimodal model stand where piecewise CUDA graphs were captured to read them.

The model is compiled from `Gemma4TextModel.forward` on, and its graphs read each input at the address that it had when
they were captured. SGLang has a static buffer for the embeddings; the per-layer inputs, which the multimodal model
looks up before, are a new tensor in each prefill. So a replay of E2B or E4B reads those of the capture.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from gemma4_runtime.release import get_global_server_args, is_in_piecewise_cuda_graph
from gemma4_runtime.release.arguments import settled

_SLOT = "gemma4_triage_per_layer_inputs"


def around_per_layer_inputs(original: Callable[..., Any], model: Any, input_ids: Tensor) -> Tensor | None:
    """Turn [T] ids into [T, L, P], in one buffer of the model if a piecewise graph is to read it; None without them.

    Stands around `Gemma4ForConditionalGeneration.get_per_layer_inputs`.

    The runner pads T to a captured size and the padded ids to 0, so no row of the buffer that is read is an old one.
    """
    made = original(model, input_ids)
    if made is None or not is_in_piecewise_cuda_graph():
        return made
    slot = getattr(model, _SLOT, None)
    if slot is None:
        # The first call is a warm-up before any capture, and the memory that SGLang leaves for graphs is still free.
        rows = max(settled(get_global_server_args()).piecewise_cuda_graph_tokens or [made.shape[0]])
        slot = made.new_zeros((rows, *made.shape[1:]))
        setattr(model, _SLOT, slot)
    return slot[: made.shape[0]].copy_(made)
