"""Stage 1: the target learns the language, and its KV owners learn to be useful to an assistant.

The loss is next-token cross-entropy on known tokens. From `ASSISTANT_FROM` on, a smaller draft loss of an assistant
that is trained along flows into the target as well: a target this small may solve the language above or below the two
layers whose KV an assistant can read, and then there would be nothing in them to find.
"""

import time
from dataclasses import replace

import torch
from torch.nn import functional
from transformers import Gemma4AssistantForCausalLM, Gemma4ForConditionalGeneration

from gemma4_repro.toys import geometry, language, recurrence
from gemma4_repro.toys.stage import Stage, learning_rate, optimiser, progress, start_small_model, step_optimiser

STAGE = Stage("target", steps=1800, batch=16, length=96, learning_rate=1.5e-2)
ASSISTANT_FROM = 0.4  # share of the steps after which the assistant is trained along
ASSISTANT_WEIGHT = 0.5
NOTE = (
    f"The target was trained on next-token cross-entropy over known tokens. For the last {1 - ASSISTANT_FROM:.0%} of "
    f"its steps the two-step draft loss of an assistant trained along was added with weight {ASSISTANT_WEIGHT}, so "
    "that the KV which the assistant reads holds what it looks for."
)


def next_token_loss(states: recurrence.TargetStates, known: torch.Tensor) -> torch.Tensor:
    """Mean cross-entropy over the tokens that follow from those before them; `known` is bool [B, T]."""
    keep = known[:, 1:]
    return functional.cross_entropy(states.logits[:, :-1][keep], states.tokens[:, 1:][keep])


def train(seed: int, stage: Stage = STAGE) -> tuple[Gemma4ForConditionalGeneration, Gemma4AssistantForCausalLM, Stage]:
    """Train a target; returns it, the assistant trained along (a start for stage 2) and the stage with its time."""
    started = time.monotonic()
    torch.manual_seed(seed)
    target = Gemma4ForConditionalGeneration(geometry.target_config())
    assistant = Gemma4AssistantForCausalLM(geometry.assistant_config())
    start_small_model(target)
    start_small_model(assistant)
    text = target.model.language_model  # the vision tower sees no data and keeps its random values
    opt = optimiser([*text.parameters(), *assistant.parameters()], stage)
    rng = language.training_rng(seed)
    for step in range(stage.steps):
        corpus = language.sample(stage.batch, stage.length, rng)
        tokens, known = torch.from_numpy(corpus.tokens), torch.from_numpy(corpus.known)
        states = recurrence.run_target(target, tokens)
        loss = next_token_loss(states, known)
        progress(stage, step, loss=loss.item())
        if step >= ASSISTANT_FROM * stage.steps:
            draft = recurrence.teacher_forced_losses(assistant, target, states, tokens, known, 2, step % 2)
            loss = loss + ASSISTANT_WEIGHT * torch.stack(draft).mean()
        step_optimiser(opt, loss, learning_rate(stage, step), [text, assistant])
    return target, assistant, replace(stage, seconds=round(time.monotonic() - started))
