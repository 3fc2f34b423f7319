"""The order of two streams: a forward reads SGLang's tables before the step ahead of it frees in them.

SGLang runs forward N, and then processes the result of N-1 on the scheduler's own stream, which waits for nothing of N.
If N-1 is a prefill, its requests are put into the prefix cache there: where another request has brought the same
prefix, their slots are freed, the full-to-SWA map is set to 0 for them at once, and only then the request's row is
rewritten. Forward N decodes these requests already. A list of slots that is built in between has slot 0 for them.

As shipped the host waits in forward N until Triton's lists are there, and so enqueues nothing too early. Where it waits
no more, the scheduler's stream has to: for an event on the device, which costs the host nothing.
"""

from __future__ import annotations

from typing import Any

import torch


class _Scheduler:
    """stream: of the event loop; None until a batch was overlapped, and without CUDA."""

    stream: Any = None


def after_resolve_lengths(result: Any, future_map: Any, batch: Any, **_unknown: Any) -> None:
    """Run after `FutureMap.resolve_seq_lens_cpu`, the last that runs on the scheduler's stream before a forward."""
    if batch.seq_lens.is_cuda:
        _Scheduler.stream = torch.cuda.current_stream(batch.seq_lens.device)


def scheduler_comes_later() -> None:
    """Whatever the scheduler's stream is given from now on waits for all that this stream has been given up to now."""
    stream = _Scheduler.stream
    if stream is None or torch.cuda.is_current_stream_capturing():
        return
    here = torch.cuda.current_stream(stream.device)
    if here != stream:
        stream.wait_event(here.record_event())
