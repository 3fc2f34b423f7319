"""Layers that share another layer's KV get no pool memory.

Gemma-4's last `num_kv_shared_layers` layers have no KV of their own: SGLang binds their attention to the id of the
layer that owns it, and they never write. It counts them in the bytes of a token and makes buffers for them all the
same, up to 0.5.23. Everything that sizes or indexes the pools takes its layers from the two lists of layer ids that
`ModelRunner.adjust_hybrid_swa_layers_for_pp` leaves on the ModelConfig, before memory is profiled:

| reader                                     | with fewer ids                                        |
|--------------------------------------------|-------------------------------------------------------|
| HybridSWAPoolConfigurator.__init__         | bytes per token of owners only: more tokens           |
| SWAKVPool.__init__                         | buffers and `layers_mapping` of owners only           |
| get_kv_size_bytes, get_cpu_copy, move      | walk the buffers that there are                       |
| the prefix cache, allocators               | know slots, not layers                                |
| Gemma4AssistantForCausalLM (MTP)           | binds its layers to owners already                    |

So the ids go, once the model is loaded and every attention layer in it is seen to be bound to an owner. What walks
`layer_num` ids one by one, or sends buffers to another machine that counts them otherwise, is refused.
"""

from __future__ import annotations

from typing import Any

from gemma4_runtime.optimisations.pool_decisions import decide, draft_reason
from gemma4_runtime.pools.arithmetic import own_kv

OP = "owner-only-kv"


def after_adjust_layers(result: Any, runner: Any, *args: Any, **kwargs: Any) -> None:
    """Run after `ModelRunner.adjust_hybrid_swa_layers_for_pp`: drop the ids of layers that share KV."""
    config = runner.model_config
    text = config.hf_text_config
    shared = getattr(text, "num_kv_shared_layers", 0) or 0
    if not _is_gemma4(config):
        return
    reason = _reason(runner, shared)
    if reason is not None:
        decide(OP, f"not in force: {reason}")
        return
    every = len(config.swa_attention_layer_ids) + len(config.full_attention_layer_ids)
    config.swa_attention_layer_ids = own_kv(config.swa_attention_layer_ids, text.num_hidden_layers, shared)
    config.full_attention_layer_ids = own_kv(config.full_attention_layer_ids, text.num_hidden_layers, shared)
    owners = len(config.swa_attention_layer_ids) + len(config.full_attention_layer_ids)
    decide(OP, f"in force: {owners} of {every} layers have KV buffers, {shared} read an owner's")


def _is_gemma4(config: Any) -> bool:
    return str(config.hf_config.architectures[0]).startswith("Gemma4") and not config.is_draft_model


def _reason(runner: Any, shared: int) -> str | None:
    """Say why the pools stay as SGLang makes them; None if there is no reason."""
    if not shared:
        return "no layer shares its KV"
    if not runner.is_hybrid_swa:
        return "one pool for all layers (--disable-hybrid-swa-memory)"
    return _server_reason(runner) or draft_reason(runner) or _binding_reason(runner)


def _server_reason(runner: Any) -> str | None:
    """Say what of a server's arguments looks into the pools layer by layer, or splits the layers among ranks."""
    arguments = runner.server_args
    refused = {
        "pipeline parallelism, whose ranks may be parted between an owner and its reader": runner.pp_size > 1,
        "hierarchical cache, whose host pool mirrors the layers": arguments.enable_hierarchical_cache,
        "PD disaggregation, where the other side counts the layers too": arguments.disaggregation_mode != "null",
        "KV offload of a decode server": arguments.disaggregation_decode_enable_offload_kvcache,
        "LMCache, which stores all layers": arguments.enable_lmcache,
        "HiSparse": arguments.enable_hisparse,
        "the KV canary, which patches the pools": arguments.kv_canary != "none",
        f"pools of {arguments.device}": arguments.device not in ("cuda", "cpu"),
    }
    return next((why for why, is_so in refused.items() if is_so), None)


def _binding_reason(runner: Any) -> str | None:
    """Say whether every attention layer of the loaded model reads an owner of its own kind."""
    from gemma4_runtime.release import Gemma4Attention

    text = runner.model_config.hf_text_config
    owners = text.num_hidden_layers - text.num_kv_shared_layers
    layers = [layer for layer in runner.model.modules() if isinstance(layer, Gemma4Attention)]
    if len(layers) != text.num_hidden_layers:
        return f"{len(layers)} attention layers of a model of {text.num_hidden_layers}"
    for layer in layers:
        bound = layer.attn.layer_id
        if not 0 <= bound < owners or text.layer_types[bound] != text.layer_types[layer.layer_id]:
            return f"layer {layer.layer_id} reads layer {bound}, which is no owner of its kind"
    return None
