"""What all training stages share: the start values, the learning-rate curve and the record that the card shows."""

import math
import os
from collections.abc import Iterable
from dataclasses import dataclass

import torch

WARMUP_STEPS = 100
FINAL_SHARE = 0.02  # of the peak learning rate


@dataclass(frozen=True)
class Stage:
    """One training stage; `learning_rate` is the peak."""

    name: str
    steps: int
    batch: int
    length: int
    learning_rate: float
    seconds: int = 0


def learning_rate(stage: Stage, step: int) -> float:
    """Linear warm-up, then a cosine down to `FINAL_SHARE` of the peak."""
    warm = min(1.0, (step + 1) / WARMUP_STEPS)
    cosine = 0.5 * (1 + math.cos(math.pi * step / stage.steps))
    return stage.learning_rate * warm * (FINAL_SHARE + (1 - FINAL_SHARE) * cosine)


def optimiser(parameters: Iterable[torch.nn.Parameter], stage: Stage) -> torch.optim.AdamW:
    """AdamW as all stages use it."""
    return torch.optim.AdamW(parameters, lr=stage.learning_rate, betas=(0.9, 0.98), weight_decay=0.01)


def step_optimiser(opt: torch.optim.AdamW, loss: torch.Tensor, rate: float, clip: Iterable[torch.nn.Module]) -> None:
    """Make one update at learning rate `rate`; the gradient of each module in `clip` is cut to norm 1 on its own."""
    for group in opt.param_groups:
        group["lr"] = rate
    opt.zero_grad()
    loss.backward()
    for module in clip:
        torch.nn.utils.clip_grad_norm_([p for p in module.parameters() if p.grad is not None], 1.0)
    opt.step()


@torch.no_grad()
def start_small_model(model: torch.nn.Module) -> None:
    """Start values for a model of this size: the default deviation of 0.02 is meant for wide layers.

    The vision tower keeps its default. Query norms start at 0.5, because Gemma-4 scales attention by 1 and with
    weights of 1 the random attention of the first steps is nearly one-hot.
    """
    for name, parameter in model.named_parameters():
        if "vision" in name:
            continue
        if "q_norm" in name:
            parameter.fill_(0.5)
        elif "embed_tokens_per_layer" in name:
            parameter.normal_(0, parameter.shape[1] ** -0.5 * 2.8)
        elif parameter.dim() >= 2:  # experts are one matrix each, in one parameter
            parameter.normal_(0, parameter.shape[-1] ** -0.5)


def progress(stage: Stage, step: int, **values: float) -> None:
    """Print a line every 50 steps, unless GEMMA4_TOYS_QUIET is set."""
    if step % 50 == 0 and not os.environ.get("GEMMA4_TOYS_QUIET"):
        shown = "  ".join(f"{key} {value:.3f}" for key, value in values.items())
        print(f"{stage.name}: step {step}/{stage.steps}  {shown}", flush=True)
