"""A window of accepted tokens, judged as if its tokens had come one by one.

Under spec v2 a step brings several tokens. SGLang asks about them all at once: a stop string is looked for in the tail
of the whole window only, which may be shorter than the window, and where it is found everything after it is answered
too; max_new_tokens is asked before the end tokens, so what follows an end token in the last window is answered. The fix
`spec-v2-stop-window` ends a request at the first of them that ends it; requests with a grammar are those of
`spec-v2-grammar-end`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def around_update_finish_state(original: Callable[..., None], request: Any, new_accepted_len: int = 1) -> None:
    """Run around `Req.update_finish_state`; a window of one token is SGLang's own case."""
    if new_accepted_len > 1 and request.grammar is None and not request.finished():
        judge_in_turn(original, request, new_accepted_len)
    else:
        original(request, new_accepted_len)


def judge_in_turn(
    original: Callable[..., None], request: Any, accepted: int, after_each: Callable[[int], bool] | None = None
) -> None:
    """Run `Req.update_finish_state` for each of the last `accepted` output ids, until one ends the request.

    The request keeps all of its output ids, because its KV holds them; finished_len says how many are its answer.
    `after_each` is given a token that did not end the request; true asks about that token once more.
    """
    window = request.output_ids[-accepted:]
    del request.output_ids[-accepted:]
    seen = 0
    try:
        for token in window:
            request.output_ids.append(token)
            seen += 1
            original(request, 1)
            if not request.finished() and after_each is not None and after_each(token):
                original(request, 1)
            if request.finished():
                if request.finished_len is None:
                    request.finished_len = len(request.output_ids)
                # SGLang has counted the whole window. Reasoning comes first in an answer, so this is exact.
                request.reasoning_tokens = min(request.reasoning_tokens, request.finished_len)
                return
    finally:
        request.output_ids.extend(window[seen:])
