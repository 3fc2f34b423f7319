"""How a reproduction comes along, on stderr: a live line on a terminal, plain lines elsewhere."""

import sys
from pathlib import Path
from types import TracebackType

from rich.console import Console
from rich.status import Status
from rich.text import Text

from gemma4_repro.outcome import Outcome
from gemma4_repro.scenario import Arm, Scenario
from gemma4_triage.cli.output import printable
from gemma4_triage.report.repro_document import stand_ins


class Progress:
    """A listener for gemma4_repro.runner, and a context manager that leaves the terminal as it was."""

    def __init__(self, scenario: Scenario, arms: tuple[Arm, ...]) -> None:
        live = sys.stderr.isatty()
        self._console = Console(stderr=True, markup=False, highlight=False, emoji=False, force_terminal=live)
        self._status: Status | None = self._console.status("") if live else None
        self._scenario = scenario
        self._arms = arms
        self._now = ""

    def __enter__(self) -> "Progress":
        if self._status:
            self._status.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if self._status:
            self._status.stop()

    def importing(self, sglang_version: str, folder: Path) -> None:
        """The banner: which parts of the engine are not what runs on a GPU."""
        self._say(f"host engine: SGLang {sglang_version}, the real engine on this CPU; stand-ins for CUDA-only parts:")
        for leaf in stand_ins():
            self._say(f"  {leaf['id']:<22}{leaf['title']}")
        for arm in self._arms:
            self._say(f"arm {arm.id}: {arm.title}; device model {arm.device_model}")
        self._say(f"run folder: {folder}")
        self._now = f"{self._scenario.id}"

    def arm_started(self, arm: Arm, limit_s: float) -> None:
        self._now = f"{arm.id} (limit {limit_s:.0f} s)"
        if not self._status:
            self._say(f"{arm.id}: started, limit {limit_s:.0f} s")

    def waiting(self, phase: str | None, elapsed_s: float) -> None:
        if self._status:
            self._status.update(Text(f"{self._now}: {phase or 'starting its process'}, {elapsed_s:.0f} s"))

    def arm_ended(self, arm: Arm, outcome: Outcome) -> None:
        raised = f": {outcome.raised[0].type_name}" if outcome.raised else ""
        self._say(f"{arm.id}: {outcome.ending.value} after {outcome.duration_s:.1f} s{raised}")

    def _say(self, text: str) -> None:
        self._console.print(Text(printable(text)), soft_wrap=True)
