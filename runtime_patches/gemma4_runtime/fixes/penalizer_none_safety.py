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

from gemma4_runtime.errors import PenaltiesLost
from gemma4_runtime.release import SamplingBatchInfo, apply_scaling_penalties


class SummedPenalties:
    """In an orchestrator's place for one step: what `update_penalties` has summed up, applied and not added to.

    It answers what SGLang calls on a `BatchedPenalizerOrchestrator`. Sums of two batches cannot be made one: which
    request of the other batch has which penalty is not in them where it has none.
    """

    def __init__(self, info: SamplingBatchInfo) -> None:
        """Take them off info, so that nothing applies them twice: [requests, vocabulary] fp32, or None."""
        self._additive, self._scaling = info.acc_additive_penalties, info.acc_scaling_penalties
        info.acc_additive_penalties = info.acc_scaling_penalties = None

    def give_back(self, info: SamplingBatchInfo) -> None:
        """Give them to info, of as many requests as are left."""
        info.acc_additive_penalties, info.acc_scaling_penalties = self._additive, self._scaling

    @property
    def is_required(self) -> bool:
        return self._additive is not None or self._scaling is not None

    @property
    def penalizers(self) -> dict[type, Any]:
        """What another orchestrator's `merge` reads of this one.

        Raises:
            PenaltiesLost: there are penalties, and their counts are not here.
        """
        if self.is_required:
            raise _unmergeable()
        return {}

    def cumulate_output_tokens(self, output_ids: torch.Tensor) -> None:
        """Do nothing: whoever summed them up counts tokens."""

    def apply(self, logits: torch.Tensor, repeat: int | None = None) -> None:
        """Add them to logits [requests * repeat, vocabulary], in place; one row per request if repeat is None."""
        if self._additive is not None:
            logits.add_(_rows(self._additive, repeat))
        if self._scaling is not None:
            apply_scaling_penalties(logits, _rows(self._scaling, repeat))

    def accumulate_additive_penalties(self, logits: torch.Tensor) -> None:
        """Add them to logits [requests, vocabulary], in place."""
        if self._additive is not None:
            logits.add_(self._additive)

    def accumulate_scaling_penalties(self) -> torch.Tensor | None:
        """[requests, vocabulary], the caller's to change; None where there are none."""
        return None if self._scaling is None else self._scaling.clone()

    def filter(self, keep_indices: torch.Tensor) -> None:
        """keep_indices: int64 [requests that stay]. Verification filters a copy of its batch's sampling_info."""
        if len(keep_indices) == 0:
            self.release()
        if self._additive is not None:
            self._additive = self._additive[keep_indices]
        if self._scaling is not None:
            self._scaling = self._scaling[keep_indices]

    def merge(self, their: Any) -> None:
        """Do nothing, where neither side has penalties.

        Raises:
            PenaltiesLost: one has.
        """
        if self.is_required or their.is_required:
            raise _unmergeable()

    def release(self) -> None:
        self._additive = self._scaling = None


def around_step(original: Callable[[Any, Any], Any], worker: Any, batch: Any) -> Any:
    """Run around `FrozenKVMTPWorker.draft` and `verify`.

    Raises:
        PenaltiesLost: there is no sampling_info, and a request has penalties.
    """
    info = batch.sampling_info
    if batch.forward_mode.is_idle() or (info is not None and info.penalizer_orchestrator is not None):
        return original(worker, batch)
    if info is None:
        batch.sampling_info = _from_requests(batch)
        return original(worker, batch)
    summed = info.penalizer_orchestrator = SummedPenalties(info)
    try:
        return original(worker, batch)
    finally:
        info.penalizer_orchestrator = None
        summed.give_back(info)


def _rows(penalties: torch.Tensor, repeat: int | None) -> torch.Tensor:
    return penalties if repeat is None else torch.repeat_interleave(penalties, repeat, dim=0)


def _unmergeable() -> PenaltiesLost:
    return PenaltiesLost(
        "a batch whose penalties are summed up for one step was to be merged with another: how often each token was "
        "counted is not in the sums. Whoever merges batches has to do it before sampling_info is copied for a forward."
    )


def _from_requests(batch: Any) -> SamplingBatchInfo:
    made = SamplingBatchInfo.from_schedule_batch(batch, batch.model_config.vocab_size)
    if made.penalizer_orchestrator is not None and made.penalizer_orchestrator.is_required:
        raise PenaltiesLost(
            f"a batch of {len(batch.reqs)} requests came to an MTP step without sampling_info, and some of them have "
            "penalties: how often each token was counted is lost with it, and going on would give wrong tokens. "
            "Whoever copied the batch has to keep its sampling_info."
        )
    return made
