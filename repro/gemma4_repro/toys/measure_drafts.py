"""Measures an assistant: how many of its drafts the target accepts, and how many once it reads wrong pages."""

from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import Gemma4AssistantForCausalLM, Gemma4ForConditionalGeneration

from gemma4_repro.toys import recurrence
from gemma4_repro.toys.geometry import FULL, SLIDING
from gemma4_repro.toys.measure_target import NEW_TOKENS, PROMPT_TOKENS, SEED, Speech, greedy, load_target
from gemma4_repro.toys.wrong_pages import with_wrong_pages


@dataclass(frozen=True)
class Pair:
    """A loaded toy pair, fp32 and in evaluation mode."""

    target: Gemma4ForConditionalGeneration
    assistant: Gemma4AssistantForCausalLM


def load_pair(target: Path, assistant: Path) -> Pair:
    """Load both checkpoints from their folders."""
    drafts = Gemma4AssistantForCausalLM.from_pretrained(assistant, dtype=torch.float32)
    return Pair(load_target(target), drafts.eval())


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
def measure(pair: Pair, speech: Speech) -> dict:
    """Say what the cards of a pair have besides the target's own numbers."""
    hf_length, hf_same = hf_accept_length(pair, speech.prompts, NEW_TOKENS)

    def accept(seen: recurrence.TargetStates, rope_offset: int = recurrence.SGLANG_ROPE) -> float:
        return mean_accept_length(pair, seen, PROMPT_TOKENS, rope_offset)

    return {
        "draft_steps": recurrence.DRAFT_STEPS,
        "accept_length": {
            "sglang_rope": accept(speech.states),
            "hf_rope": accept(speech.states, recurrence.HF_ROPE),
            "hf_assisted_generation": hf_length,
            "wrong_sliding_pages": accept(with_wrong_pages(speech.states, SLIDING, SEED)),
            "wrong_full_pages": accept(with_wrong_pages(speech.states, FULL, SEED)),
        },
        "hf_assisted_equals_greedy": hf_same,
    }
