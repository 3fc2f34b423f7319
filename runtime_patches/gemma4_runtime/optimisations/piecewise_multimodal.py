"""Prefills of a multimodal Gemma-4 in piecewise CUDA graphs; the vision tower stays eager before them.

SGLang switches these graphs off by a list of rules. This lifts the rule about multimodal models and no other, before
SGLang sizes memory, where graphs want their share. `--enforce-piecewise-cuda-graph` would lift all of them.
`piecewise-ple` is what makes E2B and E4B right in the graphs, and stands alone because enforcing needs it too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gemma4_runtime.fusion.paths import PATHS
from gemma4_runtime.release import ForwardMode

OP = "piecewise-multimodal"


def around_handle(original: Callable[..., Any], arguments: Any) -> None:
    """Run around `ServerArgs._handle_piecewise_cuda_graph`, which only reads what it decides by."""
    config = arguments.get_model_config()
    if not _is_gemma(config) or arguments.enable_breakable_cuda_graph:
        # SGLang's breakable runner takes the layers of `language_model.model`, and a Gemma4TextModel has its own: it
        # would make no graph, and every prefill would be eager beside memory that was kept for graphs.
        original(arguments)
        return
    multimodal = config.is_multimodal
    config.is_multimodal = False
    try:
        original(arguments)
    finally:
        config.is_multimodal = multimodal
    asked = arguments.piecewise_cuda_graph_tokens, arguments.piecewise_cuda_graph_max_tokens
    kept_off = arguments.disable_piecewise_cuda_graph or arguments.enforce_piecewise_cuda_graph
    if multimodal and asked == (None, None) and not kept_off:
        _choose_sizes(arguments)


SIZES = (32, 64, 96, 128, 192, 256, 384, 512, 640, 768, 1024, 1280, 1536, 2048, 2560, 3072, 4096)
"""Tokens of a prefill for which a graph is captured. SGLang's own list goes up to a whole chunk of prefill, 8192 tokens
on an H200, in 56 sizes: each takes time at start and memory, and above 4096 tokens none was measured."""


def _choose_sizes(arguments: Any) -> None:
    """Give SGLang our sizes as if a user had named them, none above what this server can hold at once."""
    caps = (arguments.chunked_prefill_size, arguments.max_total_tokens, arguments.context_length)
    most = min((cap for cap in caps if cap is not None and cap > 0), default=SIZES[-1])
    fitting = [size for size in SIZES if size <= most] or [most]
    arguments.piecewise_cuda_graph_tokens = fitting
    arguments.piecewise_cuda_graph_max_tokens = fitting[-1]


def around_can_run(original: Callable[..., Any], runner: Any, forward_batch: Any) -> bool:
    """Run around `PiecewiseCudaGraphRunner.can_run`, asked for each prefill of a server that has such graphs."""
    if not _could_run(original, runner, forward_batch):
        PATHS.took(OP, "a prefill that the graphs are not for")
        return False
    if forward_batch.forward_mode == ForwardMode.MIXED and forward_batch.contains_image_inputs():
        # The runner calls it EXTEND, and the model would make masks of images for it, as it does for no mixed batch.
        PATHS.took(OP, "a mixed batch with images")
        return False
    PATHS.took(OP)
    return True


def _could_run(original: Callable[..., Any], runner: Any, forward_batch: Any) -> bool:
    """Ask SGLang's rules, without the one that keeps prefills of an MTP server out.

    They want hidden states, and the runner compares the kind with that of its capture. A graph ends before the part of
    the model that gathers them: what leaves it are the states of all tokens, whoever asks.
    """
    algorithm = forward_batch.spec_algorithm
    if algorithm is None or not algorithm.is_frozen_kv_mtp():
        return original(runner, forward_batch)
    captured = runner.capture_hidden_mode
    runner.capture_hidden_mode = forward_batch.capture_hidden_mode
    try:
        return original(runner, forward_batch)
    finally:
        runner.capture_hidden_mode = captured


def _is_gemma(config: Any) -> bool:
    return str(config.hf_config.architectures[0]).startswith("Gemma4")
