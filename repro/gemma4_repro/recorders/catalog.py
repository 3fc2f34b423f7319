"""The recorders by name, and what of an arm's files is removed after the verdict, unless a user asks to keep it.

An arm's request names the recorders that it wants, and what each needs to know stands in it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from gemma4_repro.engine.arm_request import PHASE_NAME, REQUEST_NAME, ArmRequest
from gemma4_repro.engine.run_folder import writing
from gemma4_repro.mutations.mutator import Mutator
from gemma4_repro.recorders.arrivals import AfterLastRounds
from gemma4_repro.recorders.drafts import DRAFTS_NAME, DraftRecorder
from gemma4_repro.recorders.layers import ROWS_NAME, STATES_NAME, LayerRecorder
from gemma4_repro.recorders.logprobs import LOGPROBS_NAME, LogprobRecorder
from gemma4_repro.recorders.reach import REACHED_NAME, ReachRecorder
from gemma4_repro.recorders.recorder import Recorder
from gemma4_repro.recorders.steps import STEPS_NAME, StepRecorder
from gemma4_repro.recorders.usage import FINISHED_NAME, UsageRecorder


@dataclass(frozen=True)
class RecorderKind:
    """One kind of recorder.

    Attributes:
        make: Makes one for an arm.
        traces: Its files in the arm's folder that are removed after the verdict, unless a user asks to keep them.
        implied: Says whether an arm needs it without naming it.
    """

    make: Callable[[ArmRequest], Recorder]
    traces: tuple[str, ...] = ()
    implied: Callable[[ArmRequest], bool] = lambda request: False


RECORDERS: Mapping[str, RecorderKind] = {
    "drafts": RecorderKind(lambda request: DraftRecorder(request.folder / DRAFTS_NAME), (DRAFTS_NAME,)),
    "steps": RecorderKind(lambda request: StepRecorder(request.folder / STEPS_NAME)),
    "layers": RecorderKind(lambda request: LayerRecorder(request.folder), (ROWS_NAME, STATES_NAME)),
    "usage": RecorderKind(lambda request: UsageRecorder(request.folder), (FINISHED_NAME,)),
    "mutator": RecorderKind(lambda request: Mutator(request.folder, request.mutation)),
    "reach": RecorderKind(
        lambda request: ReachRecorder(request.folder / REACHED_NAME, request.watched), (REACHED_NAME,)
    ),
    "logprobs": RecorderKind(
        lambda request: LogprobRecorder(request.folder),
        (LOGPROBS_NAME,),
        lambda request: request.vocabulary_size is not None,
    ),
    # It records nothing: it decides when requests are let in.
    "arrivals": RecorderKind(
        lambda request: AfterLastRounds(len(request.prompts)), implied=lambda request: request.one_by_one
    ),
}


def recorders_of(request: ArmRequest) -> list[Recorder]:
    """Return the recorders of an arm, those that it names before those that it implies.

    Raises:
        KeyError: It names one that does not exist.
    """
    implied = [name for name, kind in RECORDERS.items() if kind.implied(request) and name not in request.recorders]
    return [RECORDERS[name].make(request) for name in (*request.recorders, *implied)]


TRACES = (REQUEST_NAME, PHASE_NAME, *(name for kind in RECORDERS.values() for name in kind.traces))
"""The request with its prompts, how far the arm came, and what the recorders say are traces of theirs."""


def remove_traces(folder: Path, arms: tuple[str, ...]) -> None:
    """Remove TRACES of these arms.

    Args:
        folder: The run's; each arm has a folder of its own in it.
        arms: Their names.

    Raises:
        OutputUnwritable: The system does not let one be removed.
    """
    with writing(folder):
        for arm in arms:
            for name in TRACES:
                (folder / arm / name).unlink(missing_ok=True)
