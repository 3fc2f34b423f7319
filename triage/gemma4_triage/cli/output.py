"""Where the command line's words go: results to stdout, everything else to stderr, colour to terminals only."""

import json
import re
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

JSON_SCHEMA_VERSION = "1.0"
PIPE_WIDTH = 160
LEAST_WIDTH = 100

_UNPRINTABLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def emit_json(kind: str, fields: dict[str, Any]) -> None:
    """Print the one JSON document of a command. Raises ValueError for a non-finite number in it."""
    print(json.dumps({"schema_version": JSON_SCHEMA_VERSION, "kind": kind} | fields, indent=2, allow_nan=False))


def say(text: str) -> None:
    """A remark for a person: stderr."""
    print(printable(text), file=sys.stderr)


def printable(text: str) -> str:
    """Text from a dump, which anyone may have written, without what could command the terminal."""
    return _UNPRINTABLE.sub(lambda match: f"\\x{ord(match[0]):02x}", text)


def size_text(size_bytes: int) -> str:
    """1536 -> "1.5 KiB"."""
    size = float(size_bytes)
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.0f} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} GiB"


def stdout_console() -> "Console":
    """A rich console on stdout that takes every text literally."""
    from rich.console import Console

    class PipeAwareConsole(Console):
        def on_broken_pipe(self) -> None:
            # rich would exit with 1 here, which means a violation; the boundary in app.py knows better.
            raise BrokenPipeError

    terminal = sys.stdout.isatty()
    console = PipeAwareConsole(
        markup=False, highlight=False, emoji=False, force_terminal=terminal, width=None if terminal else PIPE_WIDTH
    )
    # In a narrower terminal a line goes on in the next one; a table would lose its columns.
    console.width = max(console.width, LEAST_WIDTH)
    return console
