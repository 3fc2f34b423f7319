"""Measures a toy pair and writes `measured.json` and the model card beside each checkpoint.

`python -m gemma4_repro.toys.measure [--toys repro/toys]`
"""

import argparse
import json
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import DynamicCache, Gemma4AssistantForCausalLM, Gemma4ForConditionalGeneration

from gemma4_repro.toys import card, language, recurrence
from gemma4_repro.toys.geometry import FULL, SLIDING
from gemma4_repro.toys.locate import ASSISTANT_NAME, TARGET_NAME
from gemma4_repro.toys.wrong_pages import with_wrong_pages

PROMPT_TOKENS = 101
NEW_TOKENS = 64
PROMPTS = 32
SEED = 2024


@dataclass(frozen=True)
class Pair:
    """A loaded toy pair, fp32 and in evaluation mode."""

    target: Gemma4ForConditionalGeneration
    assistant: Gemma4AssistantForCausalLM


def load_pair(toys: Path) -> Pair:
    """Load both checkpoints from the folder that holds them."""
    target = Gemma4ForConditionalGeneration.from_pretrained(toys / TARGET_NAME, dtype=torch.float32)
    assistant = Gemma4AssistantForCausalLM.from_pretrained(toys / ASSISTANT_NAME, dtype=torch.float32)
    return Pair(target.eval(), assistant.eval())


@torch.no_grad()
def greedy(target: Gemma4ForConditionalGeneration, prompts: torch.Tensor, new_tokens: int) -> torch.Tensor:
    """Prompts [B, P] (int64, equal lengths) and what the target says next, [B, P + new_tokens], with a KV cache."""
    cache = DynamicCache(config=target.config)
    tokens, fed = prompts, prompts
    for _ in range(new_tokens):
        fed = target(input_ids=fed, past_key_values=cache, use_cache=True).logits[:, -1:].argmax(-1)
        tokens = torch.cat([tokens, fed], dim=1)
    return tokens


def mean_accept_length(pair: Pair, states: recurrence.TargetStates, prompt_length: int, rope_offset: int) -> float:
    """Mean tokens per verify step (bonus included) over all rows, from the reference recurrence."""
    drafts = recurrence.draft_everywhere(pair.assistant, pair.target, states, rope_offset)
    rows = zip(drafts, states.tokens, strict=True)
    lengths = [n for draft, tokens in rows for n in recurrence.accept_lengths(draft, tokens, prompt_length)]
    return sum(lengths) / len(lengths)


@torch.no_grad()
def hf_accept_length(pair: Pair, prompts: torch.Tensor, new_tokens: int) -> tuple[float, bool]:
    """Mean tokens per verify step in transformers' assisted generation, and whether it emits the greedy tokens."""
    expected = greedy(pair.target, prompts, new_tokens)
    pair.assistant.generation_config.num_assistant_tokens = recurrence.DRAFT_STEPS
    pair.assistant.generation_config.num_assistant_tokens_schedule = "constant"
    forwards, same = 0, True

    def count(*_):
        nonlocal forwards
        forwards += 1

    hook = pair.target.register_forward_hook(count)
    try:
        for prompt, wanted in zip(prompts, expected, strict=True):
            out = pair.target.generate(  # pyright: ignore[reportAttributeAccessIssue]
                prompt[None],
                attention_mask=torch.ones_like(prompt[None]),
                assistant_model=pair.assistant,
                max_new_tokens=new_tokens,
                do_sample=False,
            )
            same = same and torch.equal(out[0], wanted)
    finally:
        hook.remove()
    verify_steps = forwards - len(prompts)  # the first forward of each prompt is its prefill, which emits one token
    return len(prompts) * (new_tokens - 1) / verify_steps, same


@torch.no_grad()
def next_token_accuracy(target: Gemma4ForConditionalGeneration, seed: int) -> dict[str, float]:
    """Accuracy on held-out sequences, where the next token follows from the past and where it does not."""
    corpus = language.sample(64, PROMPT_TOKENS + NEW_TOKENS, language.held_out_rng(seed))
    tokens, known = torch.from_numpy(corpus.tokens), torch.from_numpy(corpus.known)[:, 1:]
    hit = recurrence.run_target(target, tokens).logits[:, :-1].argmax(-1) == tokens[:, 1:]
    return {"known": hit[known].float().mean().item(), "unknown": hit[~known].float().mean().item()}


def _gaps(logits: torch.Tensor) -> dict[str, float]:
    top = logits.topk(2, dim=-1).values
    gap = (top[..., 0] - top[..., 1]).flatten()
    return {"p01": gap.quantile(0.01).item(), "median": gap.median().item(), "min": gap.min().item()}


@torch.no_grad()
def measure(pair: Pair) -> dict:
    """Every number of the model cards, rounded to 4 digits."""
    started = time.monotonic()
    prompts = torch.tensor(language.held_out_prompts(PROMPTS, PROMPT_TOKENS, SEED))
    tokens = greedy(pair.target, prompts, NEW_TOKENS)
    states = recurrence.run_target(pair.target, tokens)
    generated = slice(PROMPT_TOKENS - 1, -1)
    period_follows = _follows_own_past(tokens)
    hf_length, hf_same = hf_accept_length(pair, prompts, NEW_TOKENS)

    def accept(seen: recurrence.TargetStates, rope_offset: int = recurrence.SGLANG_ROPE) -> float:
        return mean_accept_length(pair, seen, PROMPT_TOKENS, rope_offset)

    numbers = {
        "prompts": PROMPTS,
        "prompt_tokens": PROMPT_TOKENS,
        "new_tokens": NEW_TOKENS,
        "draft_steps": recurrence.DRAFT_STEPS,
        "seed": SEED,
        "next_token_accuracy": next_token_accuracy(pair.target, SEED),
        "continuation_follows_cycle": period_follows,
        "top1_gap": _gaps(states.logits[:, generated]),
        "greedy_repeats_exactly": torch.equal(tokens, greedy(pair.target, prompts, NEW_TOKENS)),
        "cached_equals_uncached": torch.equal(states.logits[:, generated].argmax(-1), tokens[:, PROMPT_TOKENS:]),
        "accept_length": {
            "sglang_rope": accept(states),
            "hf_rope": accept(states, recurrence.HF_ROPE),
            "hf_assisted_generation": hf_length,
            "wrong_sliding_pages": accept(with_wrong_pages(states, SLIDING, SEED)),
            "wrong_full_pages": accept(with_wrong_pages(states, FULL, SEED)),
        },
        "hf_assisted_equals_greedy": hf_same,
    }
    print(f"Measured in {time.monotonic() - started:.0f} s")
    return _rounded(numbers)


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


def _rounded(numbers: dict) -> dict:
    return {
        key: _rounded(value) if isinstance(value, dict) else round(value, 4) if isinstance(value, float) else value
        for key, value in numbers.items()
    }


def write(toys: Path) -> dict:
    """Measure the pair in `toys`; write `measured.json` and `README.md` into both folders."""
    numbers = measure(load_pair(toys))
    for name in (TARGET_NAME, ASSISTANT_NAME):
        (toys / name / "measured.json").write_text(json.dumps(numbers, indent=2) + "\n", encoding="utf-8")
        card.write(toys / name)
    return numbers


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--toys", type=Path, default=Path("repro/toys"), help="the folder that holds both toys")
    parser.add_argument("--threads", type=int, default=1, help="torch threads")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    print(json.dumps(write(args.toys), indent=2))


if __name__ == "__main__":
    main()
