"""How a run comes along, on stderr: a listener for each of the runners."""

from __future__ import annotations

from pathlib import Path

from gemma4_repro.corpus.matrix import CleanRow, FaultRow
from gemma4_repro.engine.outcome import Outcome
from gemma4_repro.mutations.score import Row, State
from gemma4_repro.parity.runner import ArmRun
from gemma4_repro.scenario import Arm, Scenario
from gemma4_triage.live_line import LiveLine
from gemma4_triage.runs.convert import stand_ins
from gemma4_triage.terminal import MANNER


class _Progress(LiveLine):
    """What every run shows while its engines work."""

    _at_first = "importing sglang"

    def importing(self, sglang_version: str, folder: Path) -> None:
        """Say on what the run goes and where its files lie."""
        self.say(f"host engine: SGLang {sglang_version}, the real engine on this CPU, stand-ins for CUDA-only parts")
        self.say(f"run folder: {folder}")

    def waiting(self, phases: dict[str, str | None], elapsed_s: float) -> None:
        """Show in the live line what each engine does."""
        self.engines(phases, self._at_first, elapsed_s)


class ScenarioProgress(_Progress):
    """A listener for gemma4_repro.runner."""

    def __init__(self, scenario: Scenario, arms: tuple[Arm, ...]) -> None:
        super().__init__()
        self._scenario = scenario
        self._arms = arms

    def importing(self, sglang_version: str, folder: Path) -> None:
        """Say which parts of the engine are not what runs on a GPU, and what the arms are."""
        leaves = stand_ins()
        self.say(
            f"host engine: SGLang {sglang_version}, the real engine on this CPU; {len(leaves)} stand-ins for CUDA-only "
            "parts" + (":" if MANNER.verbose else ", which -v and patches list name")
        )
        for leaf in leaves if MANNER.verbose else ():
            self.say(f"  {leaf.id:<22}{leaf.title}")
        for arm in self._arms:
            self.say(f"arm {arm.id}: {arm.title}; device model {arm.device_model}")
        self.say(f"run folder: {folder}")

    def arm_started(self, arm: Arm, limit_s: float) -> None:
        """Show which arm runs."""
        self.labels[arm.id] = f"{arm.id} (limit {limit_s:.0f} s)"
        if not self.is_live:
            self.say(f"{arm.id}: started, limit {limit_s:.0f} s")

    def arm_ended(self, arm: Arm, outcome: Outcome) -> None:
        """Say how an arm ended."""
        raised = f": {outcome.raised[0].type_name}" if outcome.raised else ""
        self.say(f"{arm.id}: {outcome.ending.value} after {outcome.duration_s:.1f} s{raised}")


class CorpusProgress(_Progress):
    """A listener for gemma4_repro.corpus.runner."""

    def started(self, name: str, title: str, limit_s: float) -> None:
        """Show which case runs."""
        self.labels[name] = f"{name} (limit {limit_s:.0f} s)"

    def judged(self, row: FaultRow | CleanRow) -> None:
        """Say what the probes made of a case."""
        fired = ", ".join(f"{probe} {count}" for probe, count in row.fired.items()) or "no dump"
        said = "as expected" if row.good else "NOT as expected"
        self.say(f"{row.case.id}: {said} after {row.evidence.duration_s:.1f} s: {fired}")


class MutationsProgress(_Progress):
    """A listener for gemma4_repro.mutations.runner."""

    def started(self, name: str, limit_s: float) -> None:
        """Show which engine runs."""
        self.labels[name] = f"{name} (limit {limit_s:.0f} s)"

    def scored(self, row: Row) -> None:
        """Say what became of a mutation."""
        mutation = row.mutation
        drawn = f"{mutation.structure.value}, {mutation.defect.value}, {mutation.phase.value}"
        said = row.cause.value if row.state is State.ACTED else row.state.value
        self.say(f"{mutation.number}: {drawn}: {said} after {row.duration_s:.1f} s")


class ComparisonProgress(_Progress):
    """A listener for gemma4_repro.parity.runner."""

    _at_first = "importing sglang and transformers"

    def started(self, name: str, title: str, limit_s: float) -> None:
        """Show which side runs."""
        self.labels[name] = f"{name} (limit {limit_s:.0f} s)"

    def ended(self, arm: ArmRun) -> None:
        """Say how a side ended."""
        self.say(f"{arm.side.id}: {arm.outcome.ending.value} after {arm.outcome.duration_s:.1f} s")
