"""The recorders by name. An arm's request names those that it wants, and what each needs to know stands in it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from gemma4_repro.engine.arm_request import DRAFTS_NAME, ArmRequest
from gemma4_repro.mutations.mutator import Mutator
from gemma4_repro.recorders.drafts import DraftRecorder
from gemma4_repro.recorders.layers import LayerRecorder
from gemma4_repro.recorders.reach import REACHED_NAME, ReachRecorder
from gemma4_repro.recorders.steps import STEPS_NAME, StepRecorder
from gemma4_repro.recorders.usage import UsageRecorder


class Recorder(Protocol):
    """Hooks into SGLang; what it sees goes to files in the arm's folder."""

    def register(self, release: str) -> None:
        """Register the hooks; call it before the engine loads its plugins. Its processes inherit them by fork."""
        ...


RECORDERS: Mapping[str, Callable[[ArmRequest], Recorder]] = {
    "drafts": lambda request: DraftRecorder(request.folder / DRAFTS_NAME),
    "steps": lambda request: StepRecorder(request.folder / STEPS_NAME),
    "layers": lambda request: LayerRecorder(request.folder),
    "usage": lambda request: UsageRecorder(request.folder),
    "mutator": lambda request: Mutator(request.folder, request.mutation),
    "reach": lambda request: ReachRecorder(request.folder / REACHED_NAME, request.watched),
}
"""Logprobs are not among them: they come in SGLang's replies, if `vocabulary_size` asks for them (see logprobs.py)."""
