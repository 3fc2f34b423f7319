"""Where the command line's words go: results to stdout, everything else to stderr, colour to terminals only."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gemma4_triage.threads import THREAD, thread_url

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

JSON_SCHEMA_VERSION = "1.0"
PIPE_WIDTH = 160
LEAST_WIDTH = 40
MOST_HEAD = 20

_NAMED = {"\n": "\\n", "\r": "\\r"}
# Control characters but the tab, what begins a line, what turns the direction of writing, and what has no width.
_UNPRINTABLE = re.compile(
    r"[\x00-\x08\x0a-\x1f\x7f-\x9f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    r"\U000e0000-\U000e007f]"
)


def print_plain(text: str) -> None:
    """Print lines on stdout as they are, for whoever cuts or copies them, but for what could command the terminal."""
    for line in text.split("\n"):
        print(printable(line))


def emit_json(kind: str, fields: dict[str, Any]) -> None:
    """Print the one JSON document of a command. Raises ValueError for a non-finite number in it."""
    emit_document({"schema_version": JSON_SCHEMA_VERSION, "kind": kind} | fields)


def emit_document(document: dict[str, Any]) -> None:
    """Print a document that says its schema and kind itself. Raises ValueError for a non-finite number in it."""
    print(json.dumps(document, indent=2, allow_nan=False))


@dataclass
class Manner:
    """How the command line speaks in this process, as its options say.

    Attributes:
        color: "always" or "never"; "auto": on a terminal, unless NO_COLOR is set.
        quiet: No remarks, and lists show names alone.
        verbose: Nothing is left out that would be too long.
    """

    color: str = "auto"
    quiet: bool = False
    verbose: bool = False

    def reset(self) -> None:
        """Forget what an earlier command line of this process said."""
        self.color, self.quiet, self.verbose = "auto", False, False


MANNER = Manner()


def say(text: str) -> None:
    """Print a remark for a person on stderr, unless remarks are not wanted."""
    if not MANNER.quiet:
        warn(text)


def warn(text: str) -> None:
    """Print on stderr what a person must see, such as an error or what is damaged."""
    clean = printable(text)
    pieces = break_line(clean, shutil.get_terminal_size().columns) if sys.stderr.isatty() else [(0, len(clean), 0)]
    for start, end, indent in pieces:
        print(" " * indent + clean[start:end], file=sys.stderr)


# A command, with variables before it, from where one would copy it to the end of the line.
_COMMAND = re.compile(
    r"(?:^|\s{2,}|: )((?:[A-Z][A-Z0-9_]*=\S+ )*(?:gemma4-triage|python[0-9.]*|pip|curl|kill|make|docker) \S.*)$"
)
# A sentence that begins with a command goes on with one of these, before a word that is neither a path nor an option.
_GOES_ON = r" (?:has|injects|lists|names|reads|runs|says|shows|writes)(?= [a-z]+(?:[ ,;.:]|$))"
_WORD = re.compile(rf"gemma4-triage (?:(?!; ).)*?(?={_GOES_ON})|\S+")
_LABEL = re.compile(r"\s*(?:\S+(?: \S+)*?\s{2,})?")


def ending_command(text: str) -> re.Match[str] | None:
    """Return the command that a line ends with, as its group 1; None if a sentence goes on behind it."""
    command = _COMMAND.search(text)
    return None if command and re.search(_GOES_ON, command[1]) else command


def break_line(text: str, width: int) -> list[tuple[int, int, int]]:
    """Return the pieces of a line that a terminal has room for: where each begins, where it ends, and its indent.

    Words are not cut, since a word that is too long is a path to copy; nor is a command at the end of the line, or one
    that a sentence is about. What goes on stands below the value of a line that begins with a label, else a little to
    the right.
    """
    if len(text) <= width:
        return [(0, len(text), 0)]
    command = ending_command(text)
    prose_end = command.start(1) if command else len(text)
    label = _LABEL.match(text)
    below = label.end() if label and label.group().strip() else 0
    right = len(text) - len(text.lstrip()) + 2
    if not 0 < below <= width // 2:
        below = right
    pieces, start, end, indent = [], 0, 0, 0
    words = [match.span() for match in _WORD.finditer(text[:prose_end])]
    for word_start, word_end in [*words, *([command.span(1)] if command else [])]:
        room = width - (word_end - word_start)
        # Where a word is too long wherever it stands, it stays behind its label.
        if end and indent + word_end - start > width and (word_start > below or room >= right):
            pieces.append((start, end, indent))
            start, indent = word_start, below if room >= below else right
        end = word_end
    return [*pieces, (start, end, indent)]


def printable(text: str) -> str:
    """Return one line of text without what could command the terminal: anyone may have written what a dump says.

    A character that would do something is shown as its escape. A line break is one of these: below it a dump could
    forge a finding of ours.
    """
    return _UNPRINTABLE.sub(_escaped, text)


def _escaped(match: re.Match[str]) -> str:
    code = ord(match[0])
    return _NAMED.get(match[0]) or (
        f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
    )


def shell_words(words: Iterable[str]) -> str:
    """Return words quoted for a shell, as shlex.join does, and those that could command the terminal as `$'...'`.

    In that form bash, zsh and today's POSIX read escapes, so it is the same word, and nothing hides in it. A line break
    stays one within its quotes, as every shell takes it.
    """
    return " ".join(map(_shell_word, words))


def _shell_word(word: str) -> str:
    if all(printable(line) == line for line in word.split("\n")):
        return shlex.quote(word)
    return f"$'{printable(word.replace(_BACKSLASH, 2 * _BACKSLASH).replace(_QUOTE, _BACKSLASH + _QUOTE))}'"


_BACKSLASH, _QUOTE = "\\", "'"


def size_text(size_bytes: int) -> str:
    """1536 -> "1.5 KiB"."""
    size = float(size_bytes)
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.0f} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} GiB"


def stdout_console() -> Console:
    """Return a rich console on stdout that takes every text literally, and fits tables to a terminal."""
    from rich.console import Console
    from rich.table import Table

    terminal = sys.stdout.isatty()

    class PipeAwareConsole(Console):
        def on_broken_pipe(self) -> None:
            # rich would exit with 1 here, which means a violation; the boundary in app.py knows better.
            raise BrokenPipeError

        def print(self, *objects: Any, **options: Any) -> None:
            if options or len(objects) != 1 or not isinstance(objects[0], Table):
                super().print(*objects, **options)
            elif terminal:
                _print_table(self, objects[0])
            else:
                _print_whole(self, objects[0])

    colored = MANNER.color == "always" or (MANNER.color == "auto" and terminal and not os.environ.get("NO_COLOR"))
    console = PipeAwareConsole(
        markup=False,
        highlight=False,
        emoji=False,
        force_terminal=terminal or colored,
        color_system=("standard" if MANNER.color == "always" else "auto") if colored else None,
        width=None if terminal else PIPE_WIDTH,
    )
    console.width = max(console.width, LEAST_WIDTH)
    return console


def _print_whole(console: Console, table: Table) -> None:
    """Print each row in one line, for whoever looks for a word with grep; no line has spaces at its end."""
    from gemma4_triage.fit_table import natural_width

    usual, console.width = console.width, natural_width(table, console)
    with console.capture() as captured:
        console.print(table, crop=False)
    console.width = usual
    for line in captured.get().splitlines():
        console.file.write(f"{line.rstrip()}\n")


def _print_table(console: Console, table: Table) -> None:
    from gemma4_triage.fit_table import fit, rows_as_lists

    if fit(table, console):
        console.print(table, width=console.width)
        return
    if table.title:
        _print_text(console, clean_text(str(table.title), style="bold"))
    for row in rows_as_lists(table):
        _print_row(console, row)


def _print_row(console: Console, row: list[tuple[Text, Text]]) -> None:
    """Print the first cell, and below it a line for each of the others; without heads all in one line."""
    from rich.text import Text

    if not any(head.plain for head, _ in row):
        _print_text(console, Text("  ").join(text for _, text in row))
        return
    if not row[0][0].plain and len(row) > 1:
        # A number or a mark in front of what a row is called.
        row = [(row[1][0], Text("  ").join([row[0][1], row[1][1]])), *row[2:]]
    width = min(max((len(head.plain) for head, _ in row[1:]), default=0), MOST_HEAD)
    for at, (head, text) in enumerate(row):
        _print_text(console, text if at == 0 else Text.assemble(f"  {head.plain:<{width}}  ", text))


def plain_table(*columns: str) -> Table:
    """Return a table without a frame. The first column is never cut: it is what one copies."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for position, column in enumerate(columns):
        table.add_column(column, no_wrap=position == 0, overflow="fold")
    return table


WIDTH_FOR_ALL = 140
LEAST_CUT = 12
"""A cell that is cut shorter than this says nothing any more, and is left out."""


def is_brief(console: Console) -> bool:
    """Return whether a list leaves columns out: on a terminal of less than WIDTH_FOR_ALL columns, without -v."""
    return sys.stdout.isatty() and not MANNER.verbose and console.width < WIDTH_FOR_ALL


def with_last_cut(console: Console, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[list[str]]:
    """Return the rows of a table with the last cell cut so that each takes one line of a terminal.

    In a pipe, and with -v, it stays whole.
    """
    if not sys.stdout.isatty() or MANNER.verbose:
        return [list(row) for row in rows]
    before = [max(map(len, column)) + 2 for column in zip(*(row[:-1] for row in (heads, *rows)), strict=True)]
    room = console.width - sum(before)
    return [[*row[:-1], _cut(row[-1], room)] for row in rows]


def _cut(text: str, room: int) -> str:
    if len(text) <= room:
        return text
    return f"{text[: room - 1].rstrip()}…" if room >= LEAST_CUT else ""


def clean_text(*parts: str | tuple[str, str], style: str = "") -> Text:
    """Text that takes every string literally, without what could command the terminal.

    Args:
        parts: Strings, one behind the other; a string with a style of its own is a pair of both.
        style: Of all parts.
    """
    from rich.text import Text

    pairs = ((part, "") if isinstance(part, str) else part for part in parts)
    return Text.assemble(*((printable(text), own) for text, own in pairs), style=style)


_ADDRESS = re.compile(r"https://github\.com/[\w./#-]*[\w/]")


def print_line(console: Console, *parts: str | tuple[str, str], style: str = "") -> None:
    """Print one line: broken between words where a terminal is narrower, whole for whoever cuts it with grep.

    Threads of SGLang and addresses on GitHub are links in terminals that have them.
    """
    _print_text(console, clean_text(*parts, style=style))


def _print_text(console: Console, text: Text) -> None:
    plain = text.plain
    if console.color_system is not None:
        _link(text)
    pieces = break_line(plain, console.width) if sys.stdout.isatty() else [(0, len(plain), 0)]
    for start, end, indent in pieces:
        piece = text if end - start == len(plain) else text[start:end]
        if indent:
            piece.pad_left(indent)
        console.print(piece, soft_wrap=True)


def _link(text: Text) -> None:
    from rich.style import Style

    for match in THREAD.finditer(text.plain):
        text.stylize(Style(link=thread_url(match[0])), *match.span())
    for match in _ADDRESS.finditer(text.plain):
        text.stylize(Style(link=match[0]), *match.span())


def print_title(console: Console, text: str) -> None:
    """Print the title of what follows, below an empty line."""
    console.print()
    console.print(clean_text(text, style="bold cyan"))


def add_row(table: Table, *cells: str | tuple[str, str], style: str = "") -> None:
    """Add a row of cells to a table; a cell with a style of its own is a pair of both."""
    table.add_row(*(clean_text(cell, style=style) for cell in cells))
