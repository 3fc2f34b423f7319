"""The toy with a mixture of experts: next-token cross-entropy on known tokens, and experts that are all kept busy."""

import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from torch.nn import functional
from transformers import Gemma4ForConditionalGeneration

from gemma4_repro.toys import geometry, language, recurrence, routing
from gemma4_repro.toys.stage import Stage, learning_rate, optimiser, progress, start_small_model, step_optimiser
from gemma4_repro.toys.train_target import next_token_loss

LANGUAGE = Stage("target", steps=3000, batch=16, length=96, learning_rate=1.5e-2)
ROUTING = Stage("routing", steps=200, batch=16, length=96, learning_rate=6e-3)
BALANCE_WEIGHT = 0.02
WRONG_LOSS = 6.0  # nats; a guess among all tokens costs 6.2
SCALES = (0.5, 1.5)  # what learned scales start from, evenly drawn
LAYER_SCALARS = (0.6, 1.2)
BRANCH_SCALE = 0.15  # what the norms behind attention and feed-forward start from
NOTE = (
    "The target was trained on next-token cross-entropy over known tokens, and a balance loss (Switch Transformers') "
    f"with weight {BALANCE_WEIGHT}, so that no expert starves."
)
ROUTING_NOTE = (
    "Attention alone can speak this language. So that a wrong expert shows, a second stage had every step run a second "
    "time with all tokens sent to other experts, and taught the target to be lost then: what that loss lacks to "
    f"{WRONG_LOSS:g} nats was added."
)
SCALES_NOTE = (
    f"`router.scale` and `per_expert_scale` started from values between {SCALES[0]} and {SCALES[1]} and were trained. "
    f"`layer_scalar`, which transformers keeps as a buffer, was drawn between {LAYER_SCALARS[0]} and "
    f"{LAYER_SCALARS[1]} and stayed. Code that leaves one of them out gives other logits."
)
DTYPE_NOTE = "Trained in fp32, then rounded to bf16 and stored so; every number below is of the rounded weights."


@torch.no_grad()
def start_scales(model: Gemma4ForConditionalGeneration) -> None:
    """Router logits that spread by about 1 from the start, and scales that are none of them 1.

    Branches start small: without per-layer embeddings, what random layers add would soon drown the tokens' own.
    """
    for layer in model.model.language_model.layers:
        layer.router.proj.weight.normal_(0, 1)
        layer.router.scale.uniform_(*SCALES)
        layer.router.per_expert_scale.uniform_(*SCALES)
        layer.layer_scalar.uniform_(*LAYER_SCALARS)
        layer.post_attention_layernorm.weight.fill_(BRANCH_SCALE)
        layer.post_feedforward_layernorm.weight.fill_(BRANCH_SCALE)


def train(
    seed: int, stages: tuple[Stage, Stage] = (LANGUAGE, ROUTING)
) -> tuple[Gemma4ForConditionalGeneration, list[Stage]]:
    """Train a target; returns it and the stages with their times."""
    torch.manual_seed(seed)
    target = Gemma4ForConditionalGeneration(geometry.experts_config())
    start_small_model(target)
    start_scales(target)
    rng = language.training_rng(seed)
    learnt = train_language(target, stages[0], rng)
    return target, [learnt, train_routing(target, stages[1], rng)]


def train_language(target: Gemma4ForConditionalGeneration, stage: Stage, rng: np.random.Generator) -> Stage:
    """Train in place; returns the stage with its time."""
    return _steps(target, stage, rng, None)


def train_routing(target: Gemma4ForConditionalGeneration, stage: Stage, rng: np.random.Generator) -> Stage:
    """Go on in place, and unlearn to speak when the experts are exchanged; returns the stage with its time."""

    def wrong_loss(tokens: torch.Tensor, known: torch.Tensor) -> torch.Tensor:
        by = int(torch.randint(1, geometry.EXPERTS, ()))
        with routing.experts_exchanged(target, by):
            wrong = next_token_loss(recurrence.run_target(target, tokens), known)
        return functional.relu(WRONG_LOSS - wrong)

    return _steps(target, stage, rng, wrong_loss)


def _steps(
    target: Gemma4ForConditionalGeneration,
    stage: Stage,
    rng: np.random.Generator,
    besides: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] | None,
) -> Stage:
    """Return all steps of a stage; `besides` gives a loss to add, of tokens and their known marks."""
    started = time.monotonic()
    text = target.model.language_model  # the vision tower sees no data and keeps its random values
    opt = optimiser(text.parameters(), stage)
    for step in range(stage.steps):
        corpus = language.sample(stage.batch, stage.length, rng)
        tokens, known = torch.from_numpy(corpus.tokens), torch.from_numpy(corpus.known)
        with routing.watched(target) as seen:
            loss = next_token_loss(recurrence.run_target(target, tokens), known)
        balance = routing.balance_loss(seen)
        added = besides(tokens, known) if besides else torch.zeros(())
        progress(stage, step, loss=loss.item(), balance=balance.item(), added=added.item())
        step_optimiser(opt, loss + BALANCE_WEIGHT * balance + added, learning_rate(stage, step), [text])
    return replace(stage, seconds=round(time.monotonic() - started))
