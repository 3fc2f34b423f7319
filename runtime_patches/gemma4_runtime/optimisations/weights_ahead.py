"""Says which weights are read behind the products of each layer, for `weights-ahead`."""

from __future__ import annotations

from typing import Any, NamedTuple

from gemma4_runtime.fusion.projection import reads_others_keys
from gemma4_runtime.fusion.weights_ahead import Part, set_behind

_LINE = 128


class Most(NamedTuple):
    """Bytes that a product has read ahead, at most.

    Attributes:
        attention: Of the projection of queries: the output projection, then the MLP's beginning.
        norm: Of the output projection: what follows of the MLP's beginning.
        product: Of an MLP's first product: its second.
        layer_end: Of an MLP: the per-layer embedding's two products, then the next layer's projection of queries.
    """

    attention: int = 24 << 20
    norm: int = 8 << 20
    product: int = 8 << 20
    layer_end: int = 24 << 20


def after_text_model_init(result: Any, model: Any, *args: Any, **kwargs: Any) -> None:
    """Run after `Gemma4TextModel.__init__`, for the layers of this pipeline rank."""
    for index in range(model.start_layer, model.end_layer):
        following = model.layers[index + 1] if index + 1 < model.end_layer else None
        plan_layer(model.layers[index], following, Most())


def plan_layer(layer: Any, following: Any, most: Most) -> None:
    """Say what the products of a layer have read ahead.

    Args:
        layer: A Gemma4DecoderLayer.
        following: The next one of this pipeline rank; None behind the last.
        most: Bytes at most.
    """
    attention, mlp = layer.self_attn, layer.mlp
    out = _head(attention.o_proj, most.attention)
    heads = _halves(mlp.gate_up_proj, 0, most.attention - out.size)
    set_behind(attention.qkv_proj, (out, *heads))
    set_behind(attention.o_proj, _halves(mlp.gate_up_proj, heads[0].size, most.norm))
    set_behind(mlp.gate_up_proj, (_head(mlp.down_proj, most.product),))
    if layer.enable_moe_block:
        # The experts' weights, which come before the next layer, would push out what was read ahead of them.
        behind = (_head(layer.router.proj, most.layer_end),)
    else:
        own = [layer.per_layer_input_gate, layer.per_layer_projection] if layer.has_ple else []
        behind = tuple(_head(linear, most.layer_end) for linear in own)
        if following is not None:
            projection, left = following.self_attn.qkv_proj, most.layer_end - sum(part.size for part in behind)
            rows = following.self_attn.q_size if reads_others_keys(following.self_attn) else len(projection.weight)
            behind += (_head(projection, min(left, rows * projection.weight.stride(0) * projection.weight.itemsize)),)
    set_behind(mlp.down_proj, behind)


def _head(linear: Any, most: int) -> Part:
    return Part(linear, 0, _lines(min(most, linear.weight.nbytes)))


def _halves(linear: Any, skipped: int, most: int) -> tuple[Part, Part]:
    """Return `most` bytes of a gate and its partner, which are read side by side, behind `skipped` of each."""
    half = linear.weight.nbytes // 2
    size = _lines(min(most // 2, half - skipped))
    return Part(linear, skipped, size), Part(linear, _lines(half) + skipped, size)


def _lines(size: int) -> int:
    return max(0, size) // _LINE * _LINE
