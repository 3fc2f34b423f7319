"""Faults: requests end inside the forward, and the scheduler takes them for released already.

| fault                 | what                                                                                        |
|-----------------------|---------------------------------------------------------------------------------------------|
| double-bookkeeping    | V1's verification ends requests, and their results are processed as with overlap            |
| finish-inside-forward | a verification under spec v2 ends requests itself, as V1's does                              |

With overlap, SGLang skips requests that have ended when it processes a decode's result, because one step earlier it has
released them. A request that a verification has only marked is skipped at once: nobody releases what it holds. This is
the leak of a V1 worker that was wrapped for spec v2.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gemma4_runtime.injections import injected


def skip_finished(original: Callable[..., Any], processor: Any, batch: Any, result: Any) -> Any:
    """Run around `process_batch_result_decode(batch, result)`: as if overlap scheduling were on."""
    if any(request.finished() for request in batch.reqs):
        injected("double-bookkeeping")
    was = processor.enable_overlap
    # The processor is a frozen record.
    object.__setattr__(processor, "enable_overlap", True)
    try:
        return original(processor, batch, result)
    finally:
        object.__setattr__(processor, "enable_overlap", was)


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
            injected("finish-inside-forward")
        else:
            # The scheduler is about to add them.
            del request.output_ids[-accepted:]
    return result
