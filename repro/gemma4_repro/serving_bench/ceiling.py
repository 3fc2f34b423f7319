"""What YOCO fast prefill could be worth at most, by the matrices that a prefill multiplies by. Imports no torch."""

from __future__ import annotations

from gemma4_repro.step_bench.model_sizes import PLE, ModelSize


def gemm_ceiling(size: ModelSize) -> float:
    """Return the weights of all layers' matrices over those of the layers that have KV of their own.

    A prefill with YOCO runs the others for one row. The release projects K and V in KV-shared layers too, so they
    count.
    """
    text = size.text_config(size.layers)
    first_shared = size.layers - text["num_kv_shared_layers"]
    weights = [
        _layer(text, kind == "full_attention", index >= first_shared) for index, kind in enumerate(text["layer_types"])
    ]
    return sum(weights) / sum(weights[:first_shared])


def _layer(text: dict, full: bool, shared: bool) -> int:
    head_dim = text["global_head_dim" if full else "head_dim"]
    kv_heads = text["num_global_key_value_heads" if full else "num_key_value_heads"]
    attention = head_dim * (2 * text["num_attention_heads"] + 2 * kv_heads)
    wide = 2 if shared and text.get("use_double_wide_mlp") else 1
    return text["hidden_size"] * (attention + 3 * wide * text["intermediate_size"] + 2 * PLE)
