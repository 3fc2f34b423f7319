"""Where the command line's words go: results to stdout, everything else to stderr, colour to terminals only."""

import json
import re
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

JSON_SCHEMA_VERSION = "1.0"
PIPE_WIDTH = 160
LEAST_WIDTH = 100

_NAMED = {"\n": "\\n", "\r": "\\r"}
# Control characters but the tab, what begins a line, what turns the direction of writing, and what has no width.
_UNPRINTABLE = re.compile(
    r"[\x00-\x08\x0a-\x1f\x7f-\x9f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    r"\U000e0000-\U000e007f]"
)


def emit_json(kind: str, fields: dict[str, Any]) -> None:
    """Print the one JSON document of a command. Raises ValueError for a non-finite number in it."""
    emit_document({"schema_version": JSON_SCHEMA_VERSION, "kind": kind} | fields)


def emit_document(document: dict[str, Any]) -> None:
    """Print a document that says its schema and kind itself. Raises ValueError for a non-finite number in it."""
    print(json.dumps(document, indent=2, allow_nan=False))


def say(text: str) -> None:
    """Print a remark for a person on stderr."""
    print(printable(text), file=sys.stderr)


def printable(text: str) -> str:
    """Return one line of text without what could command the terminal: anyone may have written what a dump says.

    A character that would do something is shown as its escape. A line break is one of these: below it a dump could
    forge a finding of ours.
    """
    return _UNPRINTABLE.sub(_escaped, text)


def _escaped(match: re.Match[str]) -> str:
    code = ord(match[0])
    return _NAMED.get(match[0]) or (f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}")


def size_text(size_bytes: int) -> str:
    """1536 -> "1.5 KiB"."""
    size = float(size_bytes)
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.0f} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} GiB"


def stdout_console() -> "Console":
    """Return a rich console on stdout that takes every text literally."""
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


def plain_table(*columns: str) -> "Table":
    """Return a table without a frame. The first column is never cut: it is what one copies."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for position, column in enumerate(columns):
        table.add_column(column, no_wrap=position == 0, overflow="fold")
    return table


def clean_text(*parts: str | tuple[str, str], style: str = "") -> "Text":
    """Text that takes every string literally, without what could command the terminal.

    Args:
        parts: Strings, one behind the other; a string with a style of its own is a pair of both.
        style: Of all parts.
    """
    from rich.text import Text

    pairs = ((part, "") if isinstance(part, str) else part for part in parts)
    return Text.assemble(*((printable(text), own) for text, own in pairs), style=style)


def print_line(console: "Console", *parts: str | tuple[str, str], style: str = "") -> None:
    """Print one line, however long it is: what is copied from a terminal or cut with grep stays one line."""
    console.print(clean_text(*parts, style=style), soft_wrap=True)


def print_title(console: "Console", text: str) -> None:
    """Print the title of what follows, below an empty line."""
    console.print()
    console.print(clean_text(text, style="bold cyan"))


def add_row(table: "Table", *cells: str | tuple[str, str], style: str = "") -> None:
    """Add a row of cells to a table; a cell with a style of its own is a pair of both."""
    table.add_row(*(clean_text(cell, style=style) for cell in cells))
