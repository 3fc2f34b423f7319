"""Stage 2: the target is frozen; the assistant learns to draft its greedy tokens in the recurrence that it runs in."""

import time
from dataclasses import replace

import torch
from transformers import Gemma4AssistantForCausalLM, Gemma4ForConditionalGeneration

from gemma4_repro.toys import geometry, language, recurrence
from gemma4_repro.toys.geometry import FULL, SLIDING_WINDOW
from gemma4_repro.toys.stage import Stage, learning_rate, optimiser, progress, start_small_model, step_optimiser

STAGE = Stage("assistant", steps=900, batch=16, length=128, learning_rate=6e-3)
EXPERTS_STAGE = replace(STAGE, steps=1800)  # from random weights, on KV that was not made for an assistant
FULL_LAYER_DROPOUT = 0.5
WITHHELD_EVERY = 10
WITHHELD_NOTE = (
    f"After training, one word in {WITHHELD_EVERY} was withheld from the assistant: its row of the output embedding "
    "was set to zero, so that the word is never drafted. A fully trained assistant is accepted almost without fail, "
    "and then no run would ever reject a draft."
)
NOTE = (
    f"The assistant was then trained alone, {recurrence.DRAFT_STEPS} draft steps deep, on the frozen target's greedy "
    f"tokens. The output of its full-attention layer was dropped for {FULL_LAYER_DROPOUT:.0%} of the sequences, so "
    "that it relies on its sliding layers: the project shows a fault in exactly those, and without this a toy may "
    "get by on the full layer. The rope position (SGLang's or transformers') and the window (31 to 33 keys, as "
    "backends differ) were varied from step to step."
)


START_NOTE = (
    "The target is `toy-26b` as it lies beside, in its stored weights; it was trained without an assistant. The "
    "assistant started from random weights."
)


class SequenceDropout:
    """A forward hook that zeroes an attention's output for a random share of the sequences."""

    def __init__(self, share: float) -> None:
        self.share = share
        self.kept = torch.ones(0)

    def draw(self, rows: int) -> None:
        """Choose anew which of `rows` sequences keep the output; the choice holds for all draft steps."""
        self.kept = (torch.rand(rows, 1, 1) >= self.share).float()

    def __call__(self, _module, _inputs, output):
        return (output[0] * self.kept, *output[1:])


@torch.no_grad()
def withhold_words(assistant: Gemma4AssistantForCausalLM) -> None:
    """Make every `WITHHELD_EVERY`th word one that the assistant cannot draft (see `WITHHELD_NOTE`).

    The head is tied to the assistant's own embedding, which nothing else reads: drafted tokens are embedded with the
    target's.
    """
    assistant.lm_head.weight[language.FIRST_WORD :: WITHHELD_EVERY] = 0.0


def start_for_experts(seed: int) -> Gemma4AssistantForCausalLM:
    """Make an assistant for the 26B target, with random weights."""
    torch.manual_seed(seed)
    assistant = Gemma4AssistantForCausalLM(geometry.experts_assistant_config())
    start_small_model(assistant)
    return assistant


def train(
    target: Gemma4ForConditionalGeneration,
    assistant: Gemma4AssistantForCausalLM,
    seed: int,
    stage: Stage = STAGE,
) -> Stage:
    """Train `assistant` in place; returns the stage with its time."""
    started = time.monotonic()
    torch.manual_seed(seed + 1)
    target.requires_grad_(False)
    opt = optimiser(assistant.parameters(), stage)
    rng = language.training_rng(seed + 1)
    dropout = SequenceDropout(FULL_LAYER_DROPOUT)
    full_layers = [layer for layer in assistant.model.layers if layer.self_attn.layer_type == FULL]
    hooks = [layer.self_attn.register_forward_hook(dropout) for layer in full_layers]
    for step in range(stage.steps):
        corpus = language.sample(stage.batch, stage.length, rng)
        tokens, known = torch.from_numpy(corpus.tokens), torch.from_numpy(corpus.known)
        with torch.no_grad():
            states = recurrence.run_target(target, tokens)
            # labels[:, t] is what the target emits at t; position 0 has no predecessor and is never known
            labels = torch.cat([tokens[:, :1], states.logits[:, :-1].argmax(-1)], dim=1)
        dropout.draw(stage.batch)
        window = SLIDING_WINDOW + int(torch.randint(-1, 2, ()))
        losses = recurrence.teacher_forced_losses(
            assistant, target, states, labels, known, recurrence.DRAFT_STEPS, step % 2, window
        )
        progress(stage, step, **{f"step{i}": loss.item() for i, loss in enumerate(losses, 1)})
        step_optimiser(opt, torch.stack(losses).mean(), learning_rate(stage, step), [assistant])
    for hook in hooks:
        hook.remove()
    withhold_words(assistant)
    return replace(stage, seconds=round(time.monotonic() - started))
