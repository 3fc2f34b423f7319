"""Shapes of the toys: Gemma-4 E4B and Gemma-4 26B-A4B with their MTP assistants, in miniature.

What makes each special is kept. Both have sliding and full attention layers with different head dims. E4B: KV shared by
the last layers, per-layer embeddings, and an assistant whose layers all read the target's KV. 26B-A4B: a mixture of
experts beside the dense MLP of every layer, and full layers with fewer KV heads, whose values are their keys before
norm and rope. It shares no KV and has no per-layer embeddings; its assistant reads the last layer of each type.
"""

from typing import Any

from transformers import Gemma4AssistantConfig, Gemma4Config, Gemma4TextConfig, Gemma4VisionConfig

from gemma4_repro.toys import language

HIDDEN = 64
SLIDING_WINDOW = 32
PAGE = 16  # tokens per page of the KV pool in the project's scenarios; the window is a multiple of it
SLIDING, FULL = "sliding_attention", "full_attention"
# 5:1 as in Gemma-4, then one layer of each type that owns no KV and reads layers 4 and 5.
TARGET_LAYERS = [SLIDING] * 5 + [FULL, SLIDING, FULL]
ASSISTANT_LAYERS = [SLIDING] * 3 + [FULL]
EXPERTS_LAYERS = [SLIDING] * 5 + [FULL]
EXPERTS, EXPERTS_PER_TOKEN = 8, 2

_ROPE = {
    SLIDING: {"rope_type": "default", "rope_theta": 10_000.0},
    FULL: {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1_000_000.0},
}


def _text_config(layer_types: list[str], shared: int, intermediate: int, **kwargs: Any) -> Gemma4TextConfig:
    return Gemma4TextConfig(
        vocab_size=language.VOCAB_SIZE,
        hidden_size=HIDDEN,
        intermediate_size=intermediate,
        num_hidden_layers=len(layer_types),
        layer_types=list(layer_types),
        num_kv_shared_layers=shared,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        global_head_dim=32,
        sliding_window=SLIDING_WINDOW,
        max_position_embeddings=4096,
        rms_norm_eps=1e-6,
        rope_parameters={kind: dict(values) for kind, values in _ROPE.items()},
        tie_word_embeddings=True,
        pad_token_id=language.token_id(language.PAD),
        eos_token_id=language.token_id(language.EOS),
        bos_token_id=language.token_id(language.BOS),
        **kwargs,
    )


def target_config() -> Gemma4Config:
    """Return the E4B target: KV of the last two layers shared, per-layer embeddings."""
    text = _text_config(
        TARGET_LAYERS,
        shared=2,
        intermediate=96,
        hidden_size_per_layer_input=8,
        vocab_size_per_layer_input=language.VOCAB_SIZE,
        final_logit_softcapping=30.0,
    )
    return _with_vision(text)


def experts_config() -> Gemma4Config:
    """Return the 26B-A4B target: every layer has experts beside a dense MLP.

    The MLP is half as wide as a token's experts together, so that it cannot do without them. SGLang pads expert sizes
    to multiples of 32 on a CPU; with 32 nothing is padded.
    """
    text = _text_config(
        EXPERTS_LAYERS,
        shared=0,
        intermediate=32,
        hidden_size_per_layer_input=0,
        vocab_size_per_layer_input=0,
        final_logit_softcapping=30.0,
        enable_moe_block=True,
        num_experts=EXPERTS,
        top_k_experts=EXPERTS_PER_TOKEN,
        moe_intermediate_size=32,
        attention_k_eq_v=True,
        num_global_key_value_heads=1,
    )
    return _with_vision(text)


def _with_vision(text: Gemma4TextConfig) -> Gemma4Config:
    """`Gemma4ForConditionalGeneration`: the text is trained, the vision tower left at its random start."""
    vision = Gemma4VisionConfig(
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=8,
        position_embedding_size=64,
    )
    tokens = {
        "image_token_id": language.IMAGE,
        "boi_token_id": language.BEGIN_IMAGE,
        "eoi_token_id": language.END_IMAGE,
        "audio_token_id": language.AUDIO,
        "boa_token_id": language.BEGIN_AUDIO,
        "eoa_token_index": language.END_AUDIO,
        "eoa_token_id": language.END_AUDIO,  # SGLang's processor reads this name, transformers the one above
        "video_token_id": language.VIDEO,
    }
    ids: dict[str, Any] = {name: language.token_id(token) for name, token in tokens.items()}
    return Gemma4Config(
        text_config=text,
        vision_config=vision,
        audio_config=None,
        architectures=["Gemma4ForConditionalGeneration"],
        dtype="float32",
        **ids,
    )


def assistant_config() -> Gemma4AssistantConfig:
    """Return the MTP assistant of E4B: every layer is query-only and reads the target's last KV owner of its type."""
    return _assistant_config()


def experts_assistant_config() -> Gemma4AssistantConfig:
    """Return the MTP assistant of 26B-A4B: dense, and its full layer has the KV heads of the target's full layers."""
    return _assistant_config(attention_k_eq_v=True, num_global_key_value_heads=1)


def _assistant_config(**kwargs: Any) -> Gemma4AssistantConfig:
    text = _text_config(
        ASSISTANT_LAYERS,
        shared=len(ASSISTANT_LAYERS),
        intermediate=96,
        hidden_size_per_layer_input=0,
        vocab_size_per_layer_input=0,
        **kwargs,
    )
    return Gemma4AssistantConfig(
        text_config=text,
        backbone_hidden_size=HIDDEN,
        use_ordered_embeddings=False,
        architectures=["Gemma4AssistantForCausalLM"],
        dtype="float32",
    )
