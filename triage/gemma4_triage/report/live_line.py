"""Progress on stderr: one live line on a terminal, plain lines elsewhere."""

import sys
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.status import Status
from rich.text import Text

from gemma4_triage.cli.output import printable


class LiveLine:
    """A context manager that leaves the terminal as it was."""

    def __init__(self) -> None:
        live = sys.stderr.isatty()
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
            self._status.update(Text(text))

    def say(self, text: str) -> None:
        """A line that stays."""
        self._console.print(Text(printable(text)), soft_wrap=True)
