"""A load: requests at once, prompt tokens, output tokens."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Workload:
    """requests run at once, each with prompt_tokens and, at its end, output_tokens."""

    requests: int
    prompt_tokens: int
    output_tokens: int

    @property
    def length(self) -> int:
        """Tokens of one request at its end."""
        return self.prompt_tokens + self.output_tokens

    def __str__(self) -> str:
        return f"{self.requests}x{self.prompt_tokens}+{self.output_tokens}"
