"""The loads that scenarios run. Prompts come from the toys' language and need neither torch nor sglang."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from gemma4_repro.toys.language import held_out_prompts

PROMPT_TOKENS = 101
SEED = 20


@dataclass(frozen=True)
class Workload:
    """All prompts at once, greedy, each continued for its own fixed number of tokens whatever it says.

    The numbers of new tokens differ so that requests leave the batch one by one and pages are reused.
    """

    prompt_count: int
    prompt_tokens: int
    shortest_new_tokens: int
    longest_new_tokens: int
    seed: int = SEED

    def __post_init__(self) -> None:
        if self.prompt_count < 1 or self.prompt_tokens < 2:
            raise ValueError("a workload needs at least one prompt of at least two tokens")
        if not 1 <= self.shortest_new_tokens <= self.longest_new_tokens:
            raise ValueError(
                f"new tokens must rise from at least 1: {self.shortest_new_tokens}..{self.longest_new_tokens}"
            )

    def prompts(self) -> list[list[int]]:
        """Token ids, [prompt_count][prompt_tokens]; the same every time."""
        return held_out_prompts(self.prompt_count, self.prompt_tokens, self.seed)

    def new_tokens(self) -> Sequence[int | None]:
        """Say how many tokens each prompt is continued for, evenly spread; None: to the context's end."""
        steps = max(self.prompt_count - 1, 1)
        span = self.longest_new_tokens - self.shortest_new_tokens
        return [self.shortest_new_tokens + round(span * i / steps) for i in range(self.prompt_count)]


SWA_PRESSURE = Workload(prompt_count=8, prompt_tokens=PROMPT_TOKENS, shortest_new_tokens=40, longest_new_tokens=150)
"""Fills the sliding-window pool while the full pool, 2.5 times as large, still hands out page ids beyond its end."""

BRIEF_SWA_PRESSURE = Workload(
    prompt_count=4, prompt_tokens=PROMPT_TOKENS, shortest_new_tokens=16, longest_new_tokens=16
)
"""The same pressure for pools of 1024 and 307 tokens, in few steps: Triton's interpreter needs seconds for each."""


@dataclass(frozen=True)
class Beginnings(Workload):
    """The first tokens of another load's prompts, so that the prefix cache has them when that load comes."""

    whole_tokens: int = PROMPT_TOKENS

    def prompts(self) -> list[list[int]]:
        """Token ids, [prompt_count][prompt_tokens]; the same every time."""
        whole = held_out_prompts(self.prompt_count, self.whole_tokens, self.seed)
        return [prompt[: self.prompt_tokens] for prompt in whole]


@dataclass(frozen=True)
class OpenWorkload(Workload):
    """Prompts without a limit on their answers, which fill the context."""

    shortest_new_tokens: int = field(init=False, default=1)
    longest_new_tokens: int = field(init=False, default=1)

    def new_tokens(self) -> Sequence[int | None]:
        """Return no number for any."""
        return [None] * self.prompt_count


@dataclass(frozen=True)
class MixedWorkload(Workload):
    """Prompts of many lengths; every third one begins like the first, so that prefixes are found in the cache."""

    def prompts(self) -> list[list[int]]:
        """Token ids, [prompt_count][3 to prompt_tokens]; the same every time."""
        whole = super().prompts()
        lengths = [3 + (self.prompt_tokens - 3) * (7 * i % 10) // 9 for i in range(self.prompt_count)]
        mixed = [prompt[:length] for prompt, length in zip(whole, lengths, strict=True)]
        shared = whole[0][: self.prompt_tokens // 2]
        return [shared + prompt[len(shared) :] if i % 3 == 0 else prompt for i, prompt in enumerate(mixed)]
