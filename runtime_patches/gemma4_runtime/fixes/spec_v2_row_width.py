"""Fix `spec-v2-row-width`: under spec v2 a request's row of req_to_token holds all that is allocated for it.

Each step tops a request up to twice a step's tokens beyond what it has committed, up to the last step of a request that
fills its context. SGLang makes room for that with wide trees only; else a row is the context, 4, and one step's tokens.
The kernel that writes the row has no mask at its end: the rest goes into the row behind it, which is another request's,
and is not found again when the request is released.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gemma4_runtime.release import SpeculativeAlgorithm, get_alloc_reserve_per_decode

_CLAIMED = 4
"""SGLang's own headroom; a step claims the slot of its bonus token before it knows it."""


def around_row_headroom(original: Callable[[Any], int], server_args: Any) -> int:
    """Run around `get_req_to_token_extra_context_len`: slots of a request's row beyond the context."""
    algorithm = SpeculativeAlgorithm.from_string(server_args.speculative_algorithm)
    if algorithm.is_none() or not algorithm.supports_spec_v2():
        return original(server_args)
    # Never less than SGLang's own: what is allocated ahead is at least a step's tokens.
    return _CLAIMED + get_alloc_reserve_per_decode(server_args)
