"""Probe `page-table`, when results are read: at the synchronisation that a scheduler step has anyway.

SGLang waits for the device before it decides which requests finish: in V1 speculation inside `verify`, after its
`.tolist()`; without speculation when it processes the batch's result; with overlap, that is one batch later. So
`Req.update_finish_state` is where results are read, and a request that is told to finish there ends with this step.

| hook                        | why                                                                                |
|-----------------------------|------------------------------------------------------------------------------------|
| around run_batch            | begins a step and hangs it on the result; a step that raises is read on the way out |
| before update_finish_state  | reads the step in hand                                                              |
| around process_batch_result | says which step is in hand; reads what no request asked for (a chunk of a prefill)   |
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gemma4_runtime import steps
from gemma4_runtime.steps import InHand, Running, Step

_STEP = "_gemma4_step"
_WAYS = "_gemma4_ways_to_end"


def around_run_batch(original: Callable[..., Any], scheduler: Any, batch: Any, *args: Any, **kwargs: Any) -> Any:
    """Run around `Scheduler.run_batch`."""
    together, at_once = scheduler.__dict__.get(_WAYS) or _ways_of(scheduler)
    chunked = batch.chunked_req
    if chunked is not None and not batch.forward_mode.is_extend():
        # SGLang leaves chunked_req as it was when a batch of prefills becomes the running one.
        chunked = None
    # SGLang counts the call itself only inside it.
    step = Step(scheduler.forward_ct + 1, tuple(batch.reqs or ()), together, chunked)
    with Running(step):
        result = original(scheduler, batch, *args, **kwargs)
        if at_once:
            # The result goes on as another object, or its keys are sent before any request is asked.
            steps.settle_at_once(step)
    if step.unread:
        setattr(result, _STEP, step)
    return result


def _ways_of(scheduler: Any) -> tuple[str | None, bool]:
    """Say why no request of this server can be ended alone, and whether results are read before a step returns."""
    arguments = scheduler.server_args
    ranks, sends = arguments.tp_size * arguments.pp_size, arguments.disaggregation_mode == "prefill"
    together = f"on one of {ranks} ranks" if ranks > 1 else "in a prefill server" if sends else None
    ways = (together, arguments.pp_size > 1 or sends)
    setattr(scheduler, _WAYS, ways)
    return ways


def before_update_finish_state(*args: Any, **kwargs: Any) -> None:
    """Run before `Req.update_finish_state`, once per request and step: as little as possible."""
    if steps.awaited is not None:
        steps.awaited.settle()


def around_process_batch_result(
    original: Callable[..., Any], scheduler: Any, batch: Any, result: Any, *args: Any, **kwargs: Any
) -> Any:
    """Run around `Scheduler.process_batch_result`."""
    step = getattr(result, _STEP, None)
    if step is None:
        return original(scheduler, batch, result, *args, **kwargs)
    with InHand(step):
        return original(scheduler, batch, result, *args, **kwargs)
