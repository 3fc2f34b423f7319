"""How the corpus comes along, on stderr."""

from pathlib import Path

from gemma4_repro.detection.matrix import CleanRow, FaultRow
from gemma4_triage.report.live_line import LiveLine


class CorpusProgress(LiveLine):
    """A listener for gemma4_repro.detection.runner."""

    _now = "corpus"

    def importing(self, sglang_version: str, folder: Path) -> None:
        self.say(f"host engine: SGLang {sglang_version}, the real engine on this CPU, stand-ins for CUDA-only parts")
        self.say(f"run folder: {folder}")

    def started(self, name: str, title: str, limit_s: float) -> None:
        self._now = f"{name} (limit {limit_s:.0f} s): {title}"

    def waiting(self, phase: str | None, elapsed_s: float) -> None:
        self.update(f"{self._now}: {phase or 'starting its process'}, {elapsed_s:.0f} s")

    def judged(self, row: FaultRow | CleanRow) -> None:
        fired = ", ".join(f"{probe} {count}" for probe, count in row.fired.items()) or "no dump"
        said = "as expected" if row.good else "NOT as expected"
        self.say(f"{row.case.id}: {said} after {row.evidence.duration_s:.1f} s: {fired}")
