"""A load as people write it: requests at once, prompt tokens, output tokens."""

from __future__ import annotations

import re

from gemma4_runtime.pools.workload import Workload
from gemma4_triage.errors import UsageMistake

_WORKLOAD = re.compile(r"([0-9]{1,7})\s*[xX*]\s*([0-9]{1,9})\s*\+\s*([0-9]{1,9})")


def parse_workload(text: str) -> Workload:
    """Read a workload such as "80x8000+1000".

    Raises:
        UsageMistake: it is not written like that, or has no request or no prompt.
    """
    match = _WORKLOAD.fullmatch(text.strip())
    if match is None:
        raise UsageMistake(
            f"--workload {text!r} is no workload", "write REQUESTSxPROMPT+OUTPUT in tokens, for example 80x8000+1000"
        )
    workload = Workload(int(match[1]), int(match[2]), int(match[3]))
    if not workload.requests or not workload.prompt_tokens:
        raise UsageMistake(f"--workload {text!r} has no request or no prompt", "both have to be 1 or more")
    return workload
