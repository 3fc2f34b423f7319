"""On request: prefills of a multimodal Gemma-4 in piecewise CUDA graphs; the vision tower stays eager before them.

SGLang switches these graphs off by a list of rules. This lifts the rule about multimodal models and no other, before
SGLang sizes memory, where graphs want their share. `--enforce-piecewise-cuda-graph` would lift all of them.
`piecewise-ple` is what makes E2B and E4B right in the graphs, and stands alone because enforcing needs it too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gemma4_runtime.errors import NotServed
from gemma4_runtime.fusion.paths import PATHS
from gemma4_runtime.release import ForwardMode

OP = "piecewise-multimodal"


def around_handle(original: Callable[..., Any], arguments: Any) -> None:
    """Around `ServerArgs._handle_piecewise_cuda_graph`, which only reads what it decides by."""
    config = arguments.get_model_config()
    if not _is_gemma(config):
        original(arguments)
        return
    multimodal = config.is_multimodal
    config.is_multimodal = False
    try:
        original(arguments)
    finally:
        config.is_multimodal = multimodal


def after_last_check(_: None, arguments: Any, **_unknown: Any) -> None:
    """After `ServerArgs._handle_other_validations`, the last of what decides whether there will be graphs.

    SGLang's breakable runner takes the layers of `language_model.model`, and a Gemma4TextModel has its own: it warns,
    makes no graph, and every prefill is eager beside memory that was kept for graphs.

    Raises:
        NotServed: breakable graphs are asked for.
    """
    if arguments.disable_piecewise_cuda_graph or not arguments.enable_breakable_cuda_graph:
        return
    config = arguments.get_model_config()
    if config.is_multimodal and _is_gemma(config):
        raise NotServed(
            f"{OP} cannot serve --enable-breakable-cuda-graph: this SGLang makes no breakable graphs of a multimodal "
            "Gemma-4, and its prefills would all run eagerly. Leave one of the two out."
        )


def around_can_run(original: Callable[..., Any], runner: Any, forward_batch: Any) -> bool:
    """Around `PiecewiseCudaGraphRunner.can_run`, asked for each prefill of a server that has such graphs."""
    if not original(runner, forward_batch):
        PATHS.took(OP, "a prefill that the graphs are not for")
        return False
    if forward_batch.forward_mode == ForwardMode.MIXED and forward_batch.contains_image_inputs():
        # The runner calls it EXTEND, and the model would make masks of images for it, as it does for no mixed batch.
        PATHS.took(OP, "a mixed batch with images")
        return False
    PATHS.took(OP)
    return True


def _is_gemma(config: Any) -> bool:
    return str(config.hf_config.architectures[0]).startswith("Gemma4")
