"""How a comparison of live runs comes along, on stderr."""

from pathlib import Path

from gemma4_repro.parity.runner import ArmRun
from gemma4_triage.report.live_line import LiveLine


class AgreementProgress(LiveLine):
    """A listener for gemma4_repro.parity.runner."""

    _now = "starting"

    def importing(self, sglang_version: str, folder: Path) -> None:
        self.say(f"host engine: SGLang {sglang_version}, the real engine on this CPU, stand-ins for CUDA-only parts")
        self.say(f"run folder: {folder}")

    def started(self, name: str, title: str, limit_s: float) -> None:
        self._now = f"{name} (limit {limit_s:.0f} s)"

    def waiting(self, phase: str | None, elapsed_s: float) -> None:
        self.update(f"{self._now}: {phase or 'starting its process'}, {elapsed_s:.0f} s")

    def ended(self, arm: ArmRun) -> None:
        self.say(f"{arm.side.id}: {arm.outcome.ending.value} after {arm.outcome.duration_s:.1f} s")
