"""Finds out what a comparison's runs show of pressure on the pools, and how a run died. Pure: runs in, records out."""

from __future__ import annotations

from dataclasses import dataclass

from gemma4_dumps.listing import DumpEntry
from gemma4_repro.engine.outcome import Ending, Raised
from gemma4_repro.parity.compare_tracks import PromptComparison, Tolerances, compare_tracks
from gemma4_repro.parity.runner import ArmRun, LiveRun
from gemma4_repro.recorders.usage import Step


@dataclass(frozen=True)
class Death:
    """How far a run came that did not come to its end.

    Args:
        raised: what ended it, as far as its log or its recorder tells.
        step: the last step that it began; None if it began none.
        finished: how many requests had been answered to their end before that step.
        full: the share of the full pool in use then; None if nobody could write it down.
        swa: the same of the SWA pool.
        dumps: what probes left in that step, oldest first.
        prompts: those in whose rows these dumps list indices outside the buffer, or else any bad ones.
        compared: the answers that had been finished, held against transformers by tokens and hidden states.
    """

    raised: Raised | None
    step: Step | None
    finished: int
    full: float | None
    swa: float | None
    dumps: tuple[DumpEntry, ...]
    prompts: tuple[int, ...]
    compared: tuple[PromptComparison, ...]

    @property
    def trapped(self) -> bool:
        """Whether a probe stopped the run, before anything could kill it."""
        return self.raised is not None and self.raised.type_name == "TrappedViolation"

    @property
    def finished_agree(self) -> bool | None:
        """Whether what had been finished has transformers' tokens and states; None if nothing was compared."""
        return all(one.agrees and one.layer is None for one in self.compared) if self.compared else None


def death_of(arm: ArmRun, run: LiveRun, tolerances: Tolerances) -> Death | None:
    """Return how far the run came; None if it came to its end."""
    if arm.outcome.ending is Ending.COMPLETED:
        return None
    usage, step = arm.usage, arm.usage.last
    dumps = _dumps_since(arm, step.began) if step and not step.ended else ()
    known = bool(usage.swa) and (step is None or step.ended or step.raised is not None)
    expected = {track.prompt: track for track in run.oracle.tracks}
    pairs = [(expected[track.prompt], track) for track in arm.finished if track.prompt in expected]
    return Death(
        raised=_what_ended(arm, step),
        step=step,
        finished=len(usage.finished),
        full=usage.full[-1] if known else None,
        swa=usage.swa[-1] if known else None,
        dumps=dumps,
        prompts=_prompts_named(dumps, step) if step else (),
        compared=tuple(compare_tracks(reference, track, tolerances) for reference, track in pairs),
    )


def below_pressure(run: LiveRun) -> tuple[ArmRun, ...]:
    """Return the runs in which the SWA pool was never as full as the load was to make it."""
    if run.swa_above is None:
        return ()
    return tuple(arm for arm in run.arms if arm.usage.swa_peak <= run.swa_above)


def _what_ended(arm: ArmRun, step: Step | None) -> Raised | None:
    if step and step.raised:
        return arm.outcome.first(step.raised) or Raised(step.raised, "")
    return arm.outcome.raised[0] if arm.outcome.raised else None


def _dumps_since(arm: ArmRun, began: float) -> tuple[DumpEntry, ...]:
    dated = [entry for entry in arm.dumps if entry.manifest and entry.manifest.created_utc.timestamp() >= began]
    return tuple(sorted(dated, key=lambda entry: entry.dump_id))


def _prompts_named(dumps: tuple[DumpEntry, ...], step: Step) -> tuple[int, ...]:
    prompt_of_slot = {slot: prompt for prompt, slot in step.slots.items()}
    offences = [offence for entry in dumps if entry.manifest for offence in entry.manifest.offences]
    # Indices of the wrong pool are all wrong; what a device faults on is those outside the buffer.
    outside = [offence for offence in offences if not offence.lower <= offence.value < offence.upper]
    slots = [offence.request_slot for offence in outside or offences]
    named = {prompt_of_slot.get(slot) for slot in slots if slot is not None}
    return tuple(sorted(prompt for prompt in named if prompt is not None))
