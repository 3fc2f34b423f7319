"""What every recorder has in common: when it is called in an arm's process."""

from __future__ import annotations

from typing import Any


class Recorder:
    """Hooks into SGLang, or listens to its replies; what it sees goes to files in the arm's folder."""

    def register(self, release: str) -> None:
        """Register the hooks with SGLang, before the engine loads its plugins; its processes inherit them by fork.

        Args:
            release: The release of SGLang that is installed.
        """

    def replied(self, prompt: int, reply: dict[str, Any]) -> None:
        """Take note of the reply to a prompt that was served to its end.

        Args:
            prompt: Its number.
            reply: SGLang's, whole.
        """

    def finish(self) -> None:
        """Write what is still to be written; the whole load has been served."""
