"""Fault: a verification under spec v2 ends requests itself, as V1's verification does.

The scheduler of spec v2 releases a request when it processes the result that ends it, and with overlap it skips those
that have ended before, because one step earlier it has released them. A request that ends inside the forward is
skipped at once: nobody releases what it holds. This is the leak of a V1 worker that was wrapped for spec v2.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gemma4_runtime.injections import injected

FAULT = "finish-inside-forward"


def end_requests(original: Callable[..., Any], worker: Any, batch: Any, **others: Any) -> Any:
    """Run around `EAGLEWorkerV2.verify(batch)`."""
    result = original(worker, batch, **others)
    tokens = result.next_token_ids.reshape(len(batch.reqs), -1).tolist()
    for request, row, accepted in zip(batch.reqs, tokens, result.accept_lens.tolist(), strict=True):
        if request.finished() or request.is_retracted:
            continue
        request.output_ids.extend(row[:accepted])
        request.update_finish_state(accepted)
        if request.finished():
            injected(FAULT)
        else:
            # The scheduler is about to add them.
            del request.output_ids[-accepted:]
    return result
