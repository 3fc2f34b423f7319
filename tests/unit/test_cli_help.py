"""The help of every command: an example to paste, and lines that fit the terminal."""

import re
from collections.abc import Iterator
from typing import Any

import pytest

from command_line import parse_command, run_command
from gemma4_triage.cli import app


def commands(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the words of every command and group that `--help` shows."""
    yield path
    for name, below in getattr(command, "commands", {}).items():
        if not below.hidden:
            yield from commands(below, (*path, name))


EVERY = [pytest.param(path, id=" ".join(path) or "top") for path in commands(app.command_tree())]


def help_lines(path: tuple[str, ...], columns: int = 100) -> list[str]:
    done = run_command((*path, "--help"), {"COLUMNS": str(columns)})
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


@pytest.mark.parametrize("path", EVERY)
def test_there_is_one_example_and_the_command_takes_it(path):
    lines = help_lines(path)
    examples = [lines[at + 1].strip() for at, line in enumerate(lines) if line.strip() == "For example:"]
    assert len(examples) == 1
    assert parse_command(examples[0])
    assert examples[0].split()[1 : len(path) + 1] == list(path)


@pytest.mark.parametrize("columns", [60, 80, 200])
@pytest.mark.parametrize("path", EVERY)
def test_it_fits(path, columns):
    lines = help_lines(path, columns)
    assert [line for line in lines if len(line) > columns and not line.startswith("    gemma4-triage ")] == []


@pytest.mark.parametrize("path", EVERY)
def test_it_shows_words_for_a_person(path):
    text = "\n".join(help_lines(path))
    assert not re.search(r"<[a-z]+|\[\[|[{}]|[a-z](?<!json)\.\.\.\n", text)
