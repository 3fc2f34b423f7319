"""Measures a mixture of experts: whether all experts are used, and what it costs to get the mixture wrong."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from transformers import Gemma4ForConditionalGeneration

from gemma4_repro.toys import language, recurrence, routing
from gemma4_repro.toys.measure_target import NEW_TOKENS, PROMPT_TOKENS, SEED, gaps
from gemma4_repro.toys.train_target import next_token_loss

LEFT_OUT = {
    "per_expert_scale": lambda layer: layer.router.per_expert_scale,
    "router_scale": lambda layer: layer.router.scale,
    "layer_scalar": lambda layer: layer.layer_scalar,
}
"""Scales that an implementation may forget, by name; each as found in a decoder layer."""


@contextmanager
def left_out(target: Gemma4ForConditionalGeneration, name: str) -> Iterator[None]:
    """Set every layer's scale of that name (a key of LEFT_OUT) to 1 in the block."""
    tensors = [LEFT_OUT[name](layer) for layer in target.model.language_model.layers]
    kept = [tensor.detach().clone() for tensor in tensors]
    with torch.no_grad():
        try:
            for tensor in tensors:
                tensor.fill_(1)
            yield
        finally:
            for tensor, values in zip(tensors, kept, strict=True):
                tensor.copy_(values)


@torch.no_grad()
def measure(target: Gemma4ForConditionalGeneration) -> dict:
    """`loss` is the next-token cross-entropy on known tokens of held-out sequences, in nats."""
    corpus = language.sample(32, PROMPT_TOKENS + NEW_TOKENS, language.held_out_rng(SEED))
    tokens, known = torch.from_numpy(corpus.tokens), torch.from_numpy(corpus.known)
    with routing.watched(target) as seen:
        right = recurrence.run_target(target, tokens)
    shares = torch.stack([routed.shares for routed in seen])
    chosen = seen[0].experts.shape[1]
    with routing.experts_exchanged(target):
        exchanged = recurrence.run_target(target, tokens)
    return {
        "experts": shares.shape[1],
        "experts_per_token": chosen,
        "expert_share": {"min": shares.min().item(), "max": shares.max().item()},
        "expert_gap": gaps(torch.stack([routed.probabilities.log() for routed in seen]), chosen),
        "loss": {"right": next_token_loss(right, known).item(), "exchanged": next_token_loss(exchanged, known).item()},
        "logit_error": {name: _error_without(target, right, name) for name in LEFT_OUT},
    }


def _error_without(target: Gemma4ForConditionalGeneration, right: recurrence.TargetStates, name: str) -> float:
    """Mean absolute difference of all logits."""
    with left_out(target, name):
        wrong = recurrence.run_target(target, right.tokens)
    return (wrong.logits - right.logits).abs().mean().item()
