"""Measures a target: how well it speaks the language, and how firmly it decides."""

from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import DynamicCache, Gemma4ForConditionalGeneration

from gemma4_repro.toys import language, recurrence

PROMPT_TOKENS = 101
NEW_TOKENS = 64
PROMPTS = 32
SEED = 2024


@dataclass(frozen=True)
class Speech:
    """Prompts [B, P], and the same with what the target went on with [B, P + N] (int64); `states` of the latter."""

    prompts: torch.Tensor
    tokens: torch.Tensor
    states: recurrence.TargetStates


def load_target(folder: Path) -> Gemma4ForConditionalGeneration:
    """Return a target, fp32 and in evaluation mode."""
    return Gemma4ForConditionalGeneration.from_pretrained(folder, dtype=torch.float32).eval()


@torch.no_grad()
def greedy(target: Gemma4ForConditionalGeneration, prompts: torch.Tensor, new_tokens: int) -> torch.Tensor:
    """Prompts [B, P] (int64, equal lengths) and what the target says next, [B, P + new_tokens], with a KV cache."""
    cache = DynamicCache(config=target.config)
    tokens, fed = prompts, prompts
    for _ in range(new_tokens):
        fed = target(input_ids=fed, past_key_values=cache, use_cache=True).logits[:, -1:].argmax(-1)
        tokens = torch.cat([tokens, fed], dim=1)
    return tokens


@torch.no_grad()
def speak(target: Gemma4ForConditionalGeneration) -> Speech:
    """Held-out prompts, continued."""
    prompts = torch.tensor(language.held_out_prompts(PROMPTS, PROMPT_TOKENS, SEED))
    tokens = greedy(target, prompts, NEW_TOKENS)
    return Speech(prompts, tokens, recurrence.run_target(target, tokens))


@torch.no_grad()
def measure(target: Gemma4ForConditionalGeneration, speech: Speech) -> dict:
    """Return the numbers that every target's card has."""
    logits = speech.states.logits[:, PROMPT_TOKENS - 1 : -1]
    return {
        "prompts": PROMPTS,
        "prompt_tokens": PROMPT_TOKENS,
        "new_tokens": NEW_TOKENS,
        "seed": SEED,
        "next_token_accuracy": next_token_accuracy(target, SEED),
        "continuation_follows_cycle": _follows_own_past(speech.tokens),
        "top1_gap": gaps(logits, 1),
        "greedy_repeats_exactly": torch.equal(speech.tokens, greedy(target, speech.prompts, NEW_TOKENS)),
        "cached_equals_uncached": torch.equal(logits.argmax(-1), speech.tokens[:, PROMPT_TOKENS:]),
    }


@torch.no_grad()
def next_token_accuracy(target: Gemma4ForConditionalGeneration, seed: int) -> dict[str, float]:
    """Accuracy on held-out sequences, where the next token follows from the past and where it does not."""
    corpus = language.sample(64, PROMPT_TOKENS + NEW_TOKENS, language.held_out_rng(seed))
    tokens, known = torch.from_numpy(corpus.tokens), torch.from_numpy(corpus.known)[:, 1:]
    hit = recurrence.run_target(target, tokens).logits[:, :-1].argmax(-1) == tokens[:, 1:]
    return {"known": hit[known].float().mean().item(), "unknown": hit[~known].float().mean().item()}


def gaps(scores: torch.Tensor, chosen: int) -> dict[str, float]:
    """Return how far the `chosen` highest of the last dimension are above the next, over all rows."""
    top = scores.topk(chosen + 1, dim=-1).values
    gap = (top[..., chosen - 1] - top[..., chosen]).flatten()
    return {"p01": gap.quantile(0.01).item(), "median": gap.median().item(), "min": gap.min().item()}


def _follows_own_past(tokens: torch.Tensor) -> float:
    """Share of generated tokens that follow their predecessor as they did the last time it occurred."""
    hits, total = 0, 0
    for row in tokens.tolist():
        last_successor: dict[int, int] = {}
        for i in range(1, len(row)):
            if i >= PROMPT_TOKENS:
                total += 1
                hits += last_successor.get(row[i - 1]) == row[i]
            last_successor[row[i - 1]] = row[i]
    return hits / total
