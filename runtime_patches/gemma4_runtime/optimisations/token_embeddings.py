"""A decode step begins with our kernel: token embedding and per-layer embedding of its ids, scaled, in one launch.

`Gemma4ForConditionalGeneration.forward` makes a copy of the ids without those of pictures, videos and sounds, and looks
both embeddings up and scales them, which are 17 launches. Behind that it is done here as there. A text-only model is
given what it would look up. Prefills, in which pictures may be, have SGLang's own lines.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gemma4_kernels.token_embeddings.launch import Embedded, token_embeddings
from gemma4_runtime.current import switched_on
from gemma4_runtime.fusion.eligible import rows_reason, server_reason
from gemma4_runtime.fusion.paths import PATHS
from gemma4_runtime.fusion.small_linear import watched
from gemma4_runtime.release import Gemma3TextScaledWordEmbedding, envs

OP = "token-embeddings"


class _Hidden(NamedTuple):
    """In whose place the per-layer embedding shows the id `pad`."""

    ids: tuple[int, int, int] = (0, 0, 0)
    pad: int = 0


# As SGLang's own.
@torch.no_grad()
def around_forward(
    original: Callable[..., Any],
    model: Any,
    input_ids: Tensor | None,
    positions: Tensor,
    forward_batch: Any,
    input_embeds: Tensor | None = None,
    pp_proxy_tensors: Any = None,
    **kwargs: Any,
) -> Any:
    """Run around `Gemma4ForConditionalGeneration.forward`: input_ids [T] to logits."""
    text = model.language_model
    given = input_embeds, pp_proxy_tensors, forward_batch.input_embeds
    made = None if kwargs else _embedded(text, input_ids, forward_batch, given, model.config)
    if made is None:
        return original(model, input_ids, positions, forward_batch, input_embeds, pp_proxy_tensors, **kwargs)
    if envs.SGLANG_GEMMA_OUT_OF_PLACE_POSITION_MUTATION.get():
        positions = positions + 1
    else:
        positions += 1
    hidden = text(
        input_ids=None,
        positions=positions,
        forward_batch=forward_batch,
        input_embeds=made.tokens,
        per_layer_inputs=made.per_layer,
    )
    captured = None
    if model.capture_aux_hidden_states:
        hidden, captured = hidden
    head = text.embed_tokens if getattr(model.config.text_config, "tie_word_embeddings", True) else model.lm_head
    return model.logits_processor(input_ids, hidden, head, forward_batch, captured)


def around_causal_forward(
    original: Callable[..., Any],
    model: Any,
    input_ids: Tensor | None,
    positions: Tensor,
    forward_batch: Any,
    input_embeds: Tensor | None = None,
    per_layer_inputs: Tensor | None = None,
    pp_proxy_tensors: Any = None,
    **kwargs: Any,
) -> Any:
    """Run around `Gemma4ForCausalLM.forward`, of a text-only model: input_ids [T] to logits."""
    given = input_embeds, per_layer_inputs, pp_proxy_tensors
    made = _embedded(model.model, input_ids, forward_batch, given)
    if made is not None:
        # Behind the model a decode step has no use for the ids.
        input_ids, input_embeds, per_layer_inputs = None, made.tokens, made.per_layer
    return original(
        model, input_ids, positions, forward_batch, input_embeds, per_layer_inputs, pp_proxy_tensors, **kwargs
    )


def _embedded(
    text: Any, ids: Tensor | None, forward_batch: Any, given: tuple[Any, ...], multimodal: Any = None
) -> Embedded | None:
    """Return the rows of ids [T], the per-layer ones as [T, L, P], or None where SGLang's own lines are right.

    What is no decode step and no verification of drafts is not recorded as a path, nor is a step that is given
    embeddings.

    Args:
        text: The text model.
        ids: None where the model is given embeddings.
        forward_batch: SGLang's.
        given: What would have to be None, as it is not looked at here.
        multimodal: The configuration of the model around it; None of a text-only one.
    """
    mode = forward_batch.forward_mode
    if torch.compiler.is_compiling() or ids is None or any(one is not None for one in given) or not switched_on(OP):
        return None
    if not (mode.is_decode() or mode.is_target_verify()):
        return None
    hidden = _Hidden() if multimodal is None else _hidden(multimodal)
    if reason := _reason(text, ids, hidden):
        PATHS.took(OP, reason)
        return None
    assert hidden is not None
    tokens, per_layer = text.embed_tokens, text.embed_tokens_per_layer
    if per_layer is None:
        made = token_embeddings(ids, tokens.weight, tokens.embed_scale)
    else:
        # SGLang's bound is the configuration's, and the table has as many rows.
        rows, scale = per_layer.weight[: text.vocab_size_per_layer_input], per_layer.embed_scale
        made = token_embeddings(
            ids, tokens.weight, tokens.embed_scale, rows, scale, hidden_ids=hidden.ids, pad=hidden.pad
        )
    PATHS.ran(OP, made.tokens)
    if made.per_layer is None:
        return made
    shape = text.config.num_hidden_layers, text.hidden_size_per_layer_input
    return made._replace(per_layer=made.per_layer.unflatten(-1, shape))


def _hidden(config: Any) -> _Hidden | None:
    pad = config.text_config.pad_token_id
    if pad is None:
        return None
    # An id that there is not is in nobody's place.
    picture, video, sound = (
        pad if one is None else one for one in (config.image_token_id, config.video_token_id, config.audio_token_id)
    )
    return _Hidden((picture, video, sound), pad)


def _reason(text: Any, ids: Tensor, hidden: _Hidden | None) -> str | None:
    """Say why SGLang's own lines have to look these ids up; None if they need not."""
    if hidden is None:
        return "no id for what is left out of the per-layer embedding"
    if text.pp_group.world_size != 1:
        return "several pipeline ranks"
    tables = [one for one in (text.embed_tokens, text.embed_tokens_per_layer) if one is not None]
    for table in tables:
        # LoRA and quantisation put another module in its place.
        if type(table) is not Gemma3TextScaledWordEmbedding or type(table.embed_scale) not in (float, int):
            return f"an embedding of the type {type(table).__name__}"
        if type(table.weight) not in (torch.nn.Parameter, Tensor):
            return f"an embedding's weight of the type {type(table.weight).__name__}"
        if table.weight.dtype is not tables[0].weight.dtype or table.weight.device != ids.device:
            return "embeddings of different dtypes, or on another device than the ids"
    if reason := server_reason() or rows_reason(tables[0].weight):
        return reason
    if watched(*tables):
        return "an embedding that hooks watch"
    if ids.dim() != 1 or ids.dtype not in (torch.int32, torch.int64) or not ids.is_contiguous():
        return f"ids of {ids.dim()} dimensions, {ids.dtype}"
    return None
