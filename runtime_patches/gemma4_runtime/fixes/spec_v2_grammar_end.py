"""Fix: under spec v2 a grammar sees tokens up to the one that ends it, and the request ends there.

SGLang feeds a grammar the whole window of a step, and only after it has asked whether the request is finished. What
follows the grammar's end is fed to it as well, which some backends answer with an error that aborts the request; and
the end itself is noticed a step late, with all tokens of two windows in the answer.

| hook                               | what it does                                                          |
|------------------------------------|-----------------------------------------------------------------------|
| around process_batch_result_decode | says that the batch is one of spec v2                                 |
| around update_finish_state         | judges and feeds token by token, as verification does without spec v2 |
| around _apply_decode_grammar       | leaves out what the grammar has had, and what came after the end      |
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gemma4_runtime.fixes.spec_v2_window import judge_in_turn

_fed: dict[int, int] | None = None
"""Of the spec v2 batch in hand: how many of a step's tokens each request's grammar has had, by the request's id."""


def around_process_decode(original: Callable[..., Any], processor: Any, batch: Any, result: Any) -> Any:
    """Run around `process_batch_result_decode`."""
    global _fed
    if not (batch.is_spec_v2 and any(request.grammar is not None for request in batch.reqs)):
        return original(processor, batch, result)
    _fed = {}
    try:
        return original(processor, batch, result)
    finally:
        _fed = None


def around_update_finish_state(original: Callable[..., None], request: Any, new_accepted_len: int = 1) -> None:
    """Run around `Req.update_finish_state`."""
    fed = _fed
    if fed is None or request.grammar is None or request.finished():
        original(request, new_accepted_len)
        return
    fed[id(request)] = 0

    def feed(token: int) -> bool:
        if fed[id(request)] < 0:
            return False
        try:
            request.grammar.accept_token(token)
        except ValueError:
            # SGLang meets it again, logs it and aborts the request.
            fed[id(request)] = -1 - fed[id(request)]
            return False
        fed[id(request)] += 1
        return True

    judge_in_turn(original, request, new_accepted_len, feed)


def around_apply_grammar(
    original: Callable[..., None], processor: Any, *, req: Any, next_token_id: Any, batch: Any
) -> None:
    """Run around `_apply_decode_grammar`: a token that was refused is SGLang's to refuse."""
    fed = (_fed or {}).get(id(req))
    if fed is not None:
        next_token_id = next_token_id[-1 - fed :] if fed < 0 else []
    original(processor, req=req, next_token_id=next_token_id, batch=batch)
