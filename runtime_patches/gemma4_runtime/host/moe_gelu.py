"""Experts with gelu on a CPU: SGLang asserts silu there, though the torch form that it calls takes both.

That form has the tanh approximation of gelu, as transformers' `gelu_pytorch_tanh` has; the CUDA kernels have erf.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def forward_native(original: Callable[..., Any], method: Any, layer: Any, dispatch_output: Any) -> Any:
    """Gelu goes to `moe_forward_native`; anything else to SGLang, which says what it does not support.

    `forward_native` is SGLang's `forward_cpu` under another name, and what a CPU runs unless its kernels for AMX are
    there.
    """
    from sglang.srt.layers.moe.fused_moe_native import moe_forward_native
    from sglang.srt.layers.moe.token_dispatcher import StandardCombineInput

    config = method.moe_runner_config
    if config.activation != "gelu":
        return original(method, layer, dispatch_output)
    hidden = moe_forward_native(layer, dispatch_output.hidden_states, dispatch_output.topk_output, config)
    return StandardCombineInput(hidden_states=hidden)
