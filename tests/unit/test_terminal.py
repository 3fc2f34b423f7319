"""Whatever is printed for a person takes strings literally, and lets none of them command the terminal."""

import io

import pytest
from rich.console import Console

from gemma4_triage.terminal import add_row, plain_table, print_line, print_title

HOSTILE = "a\x1b[2Jb\x9b31mc\u202ed [bold]e[/bold] :bomb:"
CLEAN = "a\\x1b[2Jb\\x9b31mc\\u202ed [bold]e[/bold] :bomb:"


@pytest.fixture
def console():
    """Return a console as wide as it gets on a terminal of 40 columns, without colours."""
    return Console(file=io.StringIO(), width=40, markup=False, highlight=False, emoji=False)


def test_a_line_is_cleaned_and_stays_one_line(console):
    print_line(console, HOSTILE, (f" {HOSTILE}", "red"), style="bold")

    assert console.file.getvalue() == f"{CLEAN} {CLEAN}\n"


def test_a_title_is_cleaned_and_stands_below_an_empty_line(console):
    print_title(console, "\x1b]0;owned\x07")

    assert console.file.getvalue() == "\n\\x1b]0;owned\\x07\n"


def test_cells_are_cleaned(console):
    table = plain_table("one", "other")
    add_row(table, "\x1b[2J", ("\x00", "green"))

    console.print(table)

    assert console.file.getvalue().split() == ["one", "other", "\\x1b[2J", "\\x00"]
