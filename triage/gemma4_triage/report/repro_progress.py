"""How a reproduction comes along, on stderr."""

from pathlib import Path

from gemma4_repro.outcome import Outcome
from gemma4_repro.scenario import Arm, Scenario
from gemma4_triage.report.live_line import LiveLine
from gemma4_triage.report.repro_document import stand_ins


class Progress(LiveLine):
    """A listener for gemma4_repro.runner."""

    def __init__(self, scenario: Scenario, arms: tuple[Arm, ...]) -> None:
        super().__init__()
        self._scenario = scenario
        self._arms = arms
        self._now = ""

    def importing(self, sglang_version: str, folder: Path) -> None:
        """The banner: which parts of the engine are not what runs on a GPU."""
        self.say(f"host engine: SGLang {sglang_version}, the real engine on this CPU; stand-ins for CUDA-only parts:")
        for leaf in stand_ins():
            self.say(f"  {leaf['id']:<22}{leaf['title']}")
        for arm in self._arms:
            self.say(f"arm {arm.id}: {arm.title}; device model {arm.device_model}")
        self.say(f"run folder: {folder}")
        self._now = f"{self._scenario.id}"

    def arm_started(self, arm: Arm, limit_s: float) -> None:
        self._now = f"{arm.id} (limit {limit_s:.0f} s)"
        if not self.is_live:
            self.say(f"{arm.id}: started, limit {limit_s:.0f} s")

    def waiting(self, phase: str | None, elapsed_s: float) -> None:
        self.update(f"{self._now}: {phase or 'starting its process'}, {elapsed_s:.0f} s")

    def arm_ended(self, arm: Arm, outcome: Outcome) -> None:
        raised = f": {outcome.raised[0].type_name}" if outcome.raised else ""
        self.say(f"{arm.id}: {outcome.ending.value} after {outcome.duration_s:.1f} s{raised}")
