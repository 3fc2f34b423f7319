"""Fix: an MTP step takes a batch whose `sampling_info` or penalizers are None.

`FrozenKVMTPWorker.draft` and `EagleVerifyInput.verify`, which its `verify` calls, read
`sampling_info.penalizer_orchestrator.is_required` whatever is there. SGLang itself makes both kinds of None:
`ScheduleBatch.copy()` leaves `sampling_info` out, and `SamplingBatchInfo.copy_for_forward()`, which isolates a forward
from the scheduler, has no orchestrator but the penalties that it stood for, summed up.

| what is None | the step runs with |
|---|---|
| the orchestrator | the summed penalties, on every draft position as under spec V2; the copy is as before afterwards |
| `sampling_info` | one made anew of the batch's requests, which stays; refused where a request has penalties |

Penalties depend on every token so far, in the order in which rounds counted them, and that is nowhere else.
Upstream reads them unconditionally up to 0.5.23; this can go when it does not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from sglang.srt.sampling.penaltylib.repetition_penalty import apply_scaling_penalties
from sglang.srt.sampling.sampling_batch_info import SamplingBatchInfo

from gemma4_runtime.errors import PenaltiesLost


class SummedPenalties:
    """In an orchestrator's place for one step: what `update_penalties` has summed up, applied and not added to."""

    def __init__(self, info: SamplingBatchInfo) -> None:
        """info: its acc_additive_penalties and acc_scaling_penalties are [requests, vocabulary] fp32, or None."""
        self._additive, self._scaling = info.acc_additive_penalties, info.acc_scaling_penalties
        self.is_required = self._additive is not None or self._scaling is not None

    def cumulate_output_tokens(self, output_ids: torch.Tensor) -> None:
        """Nothing: whoever summed them up counts tokens."""

    def apply(self, logits: torch.Tensor, repeat: int) -> None:
        """To logits [requests * repeat, vocabulary], in place."""
        if self._additive is not None:
            logits.add_(torch.repeat_interleave(self._additive, repeat, dim=0))
        if self._scaling is not None:
            apply_scaling_penalties(logits, torch.repeat_interleave(self._scaling, repeat, dim=0))


def around_step(original: Callable[[Any, Any], Any], worker: Any, batch: Any) -> Any:
    """Around `FrozenKVMTPWorker.draft` and `verify`.

    Raises:
        PenaltiesLost: there is no sampling_info, and a request has penalties.
    """
    info = batch.sampling_info
    if batch.forward_mode.is_idle() or (info is not None and info.penalizer_orchestrator is not None):
        return original(worker, batch)
    if info is None:
        batch.sampling_info = _from_requests(batch)
        return original(worker, batch)
    info.penalizer_orchestrator = SummedPenalties(info)
    try:
        return original(worker, batch)
    finally:
        info.penalizer_orchestrator = None


def _from_requests(batch: Any) -> SamplingBatchInfo:
    made = SamplingBatchInfo.from_schedule_batch(batch, batch.model_config.vocab_size)
    if made.penalizer_orchestrator is not None and made.penalizer_orchestrator.is_required:
        raise PenaltiesLost(
            f"a batch of {len(batch.reqs)} requests came to an MTP step without sampling_info, and some of them have "
            "penalties: how often each token was counted is lost with it, and going on would give wrong tokens. "
            "Whoever copied the batch has to keep its sampling_info."
        )
    return made
