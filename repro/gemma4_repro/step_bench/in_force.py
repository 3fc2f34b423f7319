"""Loads the plugin behind a model that exists already, and switches its ops in a process that measures.

A server loads the plugin first and never switches. Here SGLang captures its own graphs before the plugin is loaded, so
what our hooks do to a model when it is made is done by hand, with the hooks' own functions.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

import torch
from sglang.srt.layers.attention.triton_backend import TritonAttnBackend
from sglang.srt.models.gemma4_causal import Gemma4DecoderLayer, Gemma4MoE, Gemma4TextModel
from sglang.srt.plugins.hook_registry import HookRegistry

from gemma4_runtime import current, plugin
from gemma4_runtime.errors import RuntimePatchError
from gemma4_runtime.fusion.layer_plan import forget_plan
from gemma4_runtime.fusion.paths import FUSED, PATHS, REFERENCE
from gemma4_runtime.optimisations import moe_routing, routed_experts
from gemma4_runtime.optimisations.decode_attention import after_init as after_triton_init
from gemma4_runtime.optimisations.next_norms import after_text_model_init

_OURS = (FUSED, REFERENCE)


def attach(ops: Sequence[str], model: torch.nn.Module, backend: Any = None) -> None:
    """Attach these ops, in place of what the environment asked for.

    The model and its attention backend, if that is Triton's, are given what their making would have.

    Raises:
        SystemExit: as the plugin does when something of it cannot be attached.
    """
    # On the host engine a session has brought the engine's leaves already.
    with suppress(RuntimePatchError):
        current.required().stop()
    os.environ["GEMMA4_TRIAGE_PATCHES"] = ",".join(ops)
    plugin.load()
    HookRegistry.apply_hooks()
    if {"decode-attention", "attention-front"} & set(ops) and isinstance(backend, TritonAttnBackend):
        after_triton_init(None, backend)
    for module in list(model.modules()):
        if isinstance(module, Gemma4MoE):
            if "routing" in ops:
                moe_routing.after_moe_init(None, module)
            if "routed-experts" in ops:
                routed_experts.after_moe_init(None, module)
        elif isinstance(module, Gemma4TextModel) and "cross-layer-norm" in ops:
            after_text_model_init(None, module)


def only(ops: Iterable[str], model: torch.nn.Module) -> None:
    """Have these in force from the next forward on, of those that are attached."""
    current.required().ids = frozenset(ops)
    for module in model.modules():
        if isinstance(module, Gemma4DecoderLayer):
            forget_plan(module)


def fused_calls() -> dict[str, int]:
    """Say how often each op of ours has run in this process: its kernel, or on a CPU its reference."""
    return {op: sum(counts.get(path, 0) for path in _OURS) for op, counts in PATHS.document().items()}


def refusals() -> dict[str, list[str]]:
    """Say why an op was not taken somewhere, by op."""
    return {
        op: reasons for op, counts in PATHS.document().items() if (reasons := [r for r in counts if r not in _OURS])
    }
