"""The frozen-KV draft recurrence in plain transformers modules, for all positions of a sequence at once.

Draft step 1 at position p takes (token p+1, the target's hidden state at p); each later step takes (the token just
drafted, the assistant's own projected hidden state). Every step reads the target's KV of positions 0..p only, and
the rope position stays where it was: SGLang keeps it at p, transformers at p+1 (see `SGLANG_ROPE`, `HF_ROPE`).
"""

from dataclasses import dataclass

import torch
from torch.nn import functional
from transformers import Gemma4AssistantForCausalLM, Gemma4ForConditionalGeneration

from gemma4_repro.toys.geometry import FULL, SLIDING, SLIDING_WINDOW

SharedKV = dict[str, tuple[torch.Tensor, torch.Tensor]]

SGLANG_ROPE, HF_ROPE = 0, 1  # rope position of the draft query, counted from the last position that has KV
DRAFT_STEPS = 3


@dataclass(frozen=True)
class TargetStates:
    """What the assistant sees of the target, for tokens [B, T].

    `hidden` is [B, T, H], the normed last hidden state. `shared_kv` maps a layer type to (K, V), each
    [B, kv heads, T, head dim]. `logits` is [B, T, V] after the soft cap. All float32.
    """

    tokens: torch.Tensor
    hidden: torch.Tensor
    logits: torch.Tensor
    shared_kv: SharedKV


def run_target(target: Gemma4ForConditionalGeneration, tokens: torch.Tensor) -> TargetStates:
    """Return one forward of the target's text model over int64 `tokens` [B, T], without a cache."""
    text = target.model.language_model
    out = text(input_ids=tokens, use_cache=False, return_shared_kv_states=True)
    cap = target.config.get_text_config().final_logit_softcapping
    logits = torch.tanh(target.lm_head(out.last_hidden_state) / cap) * cap
    return TargetStates(tokens, out.last_hidden_state, logits, out.shared_kv_states)


def draft_masks(length: int, window: int = SLIDING_WINDOW) -> dict[str, torch.Tensor]:
    """Additive float masks [1, 1, length, length]: query p sees KV 0..p, or the last `window` of them."""
    distance = torch.arange(length)[:, None] - torch.arange(length)[None, :]
    full = torch.zeros(length, length).masked_fill(distance < 0, float("-inf"))
    sliding = full.masked_fill(distance >= window, float("-inf"))
    return {FULL: full[None, None], SLIDING: sliding[None, None]}


def draft_step(
    assistant: Gemma4AssistantForCausalLM,
    embedding: torch.nn.Module,
    tokens: torch.Tensor,
    hidden: torch.Tensor,
    shared_kv: SharedKV,
    masks: dict[str, torch.Tensor],
    rope_offset: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return one draft step for every position: tokens [B, T] and hidden [B, T, H] to logits [B, T, V] and hidden.

    `Gemma4AssistantForCausalLM.forward` drafts for one position per call, so its parts are called with own masks.
    """
    z = assistant.pre_projection(torch.cat([embedding(tokens), hidden], dim=-1))
    positions = torch.arange(tokens.shape[1])[None] + rope_offset
    out = assistant.model(
        inputs_embeds=z, attention_mask=masks, position_ids=positions, shared_kv_states=shared_kv, use_cache=False
    )
    state = out.last_hidden_state
    return assistant.lm_head(state), assistant.post_projection(state)


def teacher_forced_losses(
    assistant: Gemma4AssistantForCausalLM,
    target: Gemma4ForConditionalGeneration,
    states: TargetStates,
    labels: torch.Tensor,
    counted: torch.Tensor,
    steps: int,
    rope_offset: int,
    window: int = SLIDING_WINDOW,
) -> list[torch.Tensor]:
    """Cross-entropy of each draft step, the true tokens fed in and the assistant's own hidden state fed back.

    `labels` [B, T] says what the target would emit *at* position t; `counted` [B, T] which of those to learn.
    """
    usable = states.tokens.shape[1] - 1 - steps
    kv = {kind: (k[:, :, :usable], v[:, :, :usable]) for kind, (k, v) in states.shared_kv.items()}
    masks = draft_masks(usable, window)
    embedding = target.get_input_embeddings()
    hidden = states.hidden[:, :usable]
    losses = []
    for step in range(1, steps + 1):
        fed = states.tokens[:, step : usable + step]
        logits, hidden = draft_step(assistant, embedding, fed, hidden, kv, masks, rope_offset)
        wanted = labels[:, step + 1 : usable + step + 1]
        keep = counted[:, step + 1 : usable + step + 1]
        losses.append(functional.cross_entropy(logits[keep], wanted[keep]))
    return losses


@torch.no_grad()
def draft_everywhere(
    assistant: Gemma4AssistantForCausalLM,
    target: Gemma4ForConditionalGeneration,
    states: TargetStates,
    rope_offset: int,
    steps: int = DRAFT_STEPS,
) -> torch.Tensor:
    """Greedy drafts [B, T-1, steps]: entry p is drafted after token p+1 was emitted, from KV 0..p."""
    usable = states.tokens.shape[1] - 1
    kv = {kind: (k[:, :, :usable], v[:, :, :usable]) for kind, (k, v) in states.shared_kv.items()}
    masks = draft_masks(usable)
    embedding = target.get_input_embeddings()
    tokens, hidden = states.tokens[:, 1:], states.hidden[:, :usable]
    drafts = []
    for _ in range(steps):
        logits, hidden = draft_step(assistant, embedding, tokens, hidden, kv, masks, rope_offset)
        tokens = logits.argmax(-1)
        drafts.append(tokens)
    return torch.stack(drafts, dim=-1)


def accept_lengths(drafts: torch.Tensor, tokens: torch.Tensor, prompt_length: int) -> list[int]:
    """Tokens emitted by each verify step (bonus included) while walking `tokens` [T] from its prompt on.

    `drafts` is [T-1, steps], as `draft_everywhere` gives for this row. The walk stops where a whole step no longer
    fits, so that every counted step could have been fully accepted.
    """
    steps = drafts.shape[1]
    drafted, emitted = drafts.tolist(), tokens.tolist()
    lengths = []
    bonus = prompt_length  # index of the token that the last verify step (at first: the prefill) added
    while bonus + steps + 1 < len(emitted):
        accepted = 0
        while accepted < steps and drafted[bonus - 1][accepted] == emitted[bonus + 1 + accepted]:
            accepted += 1
        lengths.append(accepted + 1)
        bonus += accepted + 1
    return lengths
