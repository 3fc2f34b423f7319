"""Gemma-4's text models at their real sizes, as configurations: the weights are drawn. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

VOCABULARY = 262144
PLE = 256


@dataclass(frozen=True)
class ModelSize:
    """The sizes of a model.

    Attributes:
        group: layers of which the last has full attention and the others slide.
        groups: how many of them, at most.
        shared_groups: those at the end without KV of their own.
        text: what else differs from the toy's text_config.
    """

    id: str
    group: int
    groups: int
    shared_groups: int
    text: Mapping[str, Any]

    @property
    def layers(self) -> int:
        return self.group * self.groups

    @property
    def has_experts(self) -> bool:
        return bool(self.text.get("enable_moe_block"))

    @property
    def has_ple(self) -> bool:
        return self.text["hidden_size_per_layer_input"] > 0

    def shared_layers(self, layers: int) -> int:
        """Return how many of so many layers, whole groups of them, have no KV of their own.

        They are those at the end, in the same proportion.
        """
        groups = layers // self.group
        return min(groups - 1, round(groups * self.shared_groups / self.groups)) * self.group

    def text_config(self, layers: int) -> dict[str, Any]:
        """Return it with this many layers, whole groups of them."""
        groups = layers // self.group
        types = ["sliding_attention"] * (self.group - 1) + ["full_attention"]
        return _COMMON | {
            "layer_types": types * groups,
            "num_hidden_layers": layers,
            "num_kv_shared_layers": self.shared_layers(layers),
            **self.text,
        }


_COMMON = {
    "head_dim": 256,
    "global_head_dim": 512,
    "vocab_size": VOCABULARY,
    "vocab_size_per_layer_input": VOCABULARY,
    "max_position_embeddings": 131072,
}
_EXPERTS = {"enable_moe_block": True, "num_experts": 128, "top_k_experts": 8, "moe_intermediate_size": 704}


def _text(hidden: int, ff: int, heads: int, kv_heads: int, full_kv_heads: int, window: int, ple: int) -> dict[str, Any]:
    return {
        "hidden_size": hidden,
        "intermediate_size": ff,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "num_global_key_value_heads": full_kv_heads,
        "sliding_window": window,
        "hidden_size_per_layer_input": ple,
    }


SIZES = {
    size.id: size
    for size in (
        ModelSize("26b", 6, 5, 0, _text(2816, 2112, 16, 8, 2, 1024, 0) | _EXPERTS),
        ModelSize("e4b", 6, 7, 3, _text(2560, 10240, 8, 2, 2, 512, PLE)),
        ModelSize("e2b", 5, 7, 4, _text(1536, 6144, 8, 1, 1, 512, PLE) | {"use_double_wide_mlp": True}),
        ModelSize("31b", 6, 10, 0, _text(5376, 21504, 32, 16, 4, 1024, 0)),
    )
}

_OF_THE_TARGET = (
    "head_dim",
    "global_head_dim",
    "num_attention_heads",
    "num_key_value_heads",
    "num_global_key_value_heads",
    "sliding_window",
    "vocab_size",
    "max_position_embeddings",
)
ASSISTANT_HIDDEN = 256


def assistant_text(target: Mapping[str, Any]) -> dict[str, Any]:
    """Return what an MTP assistant's text_config has of a target's; its four layers read the target's KV.

    Its own width is ours: enough that a draft costs what its launches cost.
    """
    own = {"hidden_size": ASSISTANT_HIDDEN, "intermediate_size": 4 * ASSISTANT_HIDDEN}
    return {name: target[name] for name in _OF_THE_TARGET} | own


def gemm_ceiling(size: ModelSize) -> float:
    """Return the weights of all layers' matrices over those of the layers with KV of their own: what YOCO is worth.

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
