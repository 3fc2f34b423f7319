"""Fix: a request ends at the first of a step's tokens that ends it, whatever ends it.

Under spec v2 a step brings several tokens. SGLang asks about them all at once: a stop string is looked for in the tail
of the whole window only, which may be shorter than the window, and where it is found everything after it is answered
too; max_new_tokens is asked before the end tokens, so what follows an end token in the last window is answered.
Requests with a grammar are those of spec-v2-grammar-end.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gemma4_runtime.mtp_v2.window import judge_in_turn


def around_update_finish_state(original: Callable[..., None], request: Any, new_accepted_len: int = 1) -> None:
    """Run around `Req.update_finish_state`; a window of one token is SGLang's own case."""
    if new_accepted_len > 1 and request.grammar is None and not request.finished():
        judge_in_turn(original, request, new_accepted_len)
    else:
        original(request, new_accepted_len)
