"""A window of accepted tokens, judged as if its tokens had come one by one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


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
