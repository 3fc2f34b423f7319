"""Progress on stderr: one live line on a terminal, plain lines elsewhere."""

import sys
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.status import Status
from rich.text import Text

from gemma4_triage.terminal import MANNER, printable


class LiveLine:
    """A context manager that leaves the terminal as it was."""

    def __init__(self) -> None:
        live = sys.stderr.isatty() and not MANNER.quiet
        self.labels: dict[str, str] = {}
        """How the live line calls an engine, where that is not its name."""
        self._console = Console(stderr=True, markup=False, highlight=False, emoji=False, force_terminal=live)
        self._status: Status | None = self._console.status("") if live else None

    def __enter__(self) -> Self:
        if self._status:
            self._status.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if self._status:
            self._status.stop()

    @property
    def is_live(self) -> bool:
        return self._status is not None

    def update(self, text: str) -> None:
        """Replace the live line; nothing where there is none."""
        if self._status:
            self._status.update(Text(printable(text)))

    def engines(self, phases: dict[str, str | None], otherwise: str, elapsed_s: float) -> None:
        """Replace the live line by what each engine does that runs, or by `otherwise` while none does."""
        said = {self.labels.get(name, name): phase or "starting its process" for name, phase in phases.items()}
        named = ", ".join(f"{name}: {phase}" for name, phase in said.items())
        self.update(f"{named or otherwise}, {elapsed_s:.0f} s")

    def say(self, text: str) -> None:
        """Print a line that stays, unless remarks are not wanted."""
        if MANNER.quiet:
            return
        self._console.print(Text(printable(text)), soft_wrap=True)
