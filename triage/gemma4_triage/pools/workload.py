"""A load as people write it: requests at once, prompt tokens, output tokens."""

from __future__ import annotations

import re
from dataclasses import dataclass

from gemma4_triage.pools.errors import PoolsError

_WORKLOAD = re.compile(r"([0-9]{1,7})\s*[xX*]\s*([0-9]{1,9})\s*\+\s*([0-9]{1,9})")


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


def parse_workload(text: str) -> Workload:
    """ "80x8000+1000".

    Raises:
        PoolsError: it is not written like that, or has no request or no prompt.
    """
    match = _WORKLOAD.fullmatch(text.strip())
    if match is None:
        raise PoolsError(
            f"--workload {text!r} is no workload", "write REQUESTSxPROMPT+OUTPUT in tokens, for example 80x8000+1000"
        )
    workload = Workload(int(match[1]), int(match[2]), int(match[3]))
    if not workload.requests or not workload.prompt_tokens:
        raise PoolsError(f"--workload {text!r} has no request or no prompt", "both have to be 1 or more")
    return workload
