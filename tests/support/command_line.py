"""The command line, run or only parsed in this process: a process each takes half a second."""

import io
import os
import shlex
import subprocess
from collections.abc import Mapping
from contextlib import redirect_stderr, redirect_stdout
from typing import Any
from unittest import mock

from gemma4_triage.cli import app
from gemma4_triage.cli.option_names import in_todays_words


def run_command(words: tuple[str, ...], environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Return what `gemma4-triage WORDS` answers when these are all its variables. To start a server is an error."""
    started = mock.patch("os.execvpe", side_effect=AssertionError("it started a server"))
    variables = mock.patch.dict(os.environ, environment, clear=True)
    with started, variables, redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as err:
        code = app.main(list(words))
    return subprocess.CompletedProcess(words, int(code), out.getvalue(), err.getvalue())


def find_command(line: str) -> tuple[Any, Any, list[str]]:
    """Return the command that `line` names, the context that it stands in, and the words that are left for it.

    `line` begins with the program's name.
    """
    program, *words = in_todays_words(shlex.split(line))
    assert program == "gemma4-triage", line
    command = app.command_tree()
    parent = _open(command, program, None)
    assert words[0] in command.commands, f"{line}: no such verb"
    command = command.commands[words.pop(0)]
    while words and words[0] in getattr(command, "commands", {}):
        parent = _open(command, command.name, parent)
        command = command.commands[words.pop(0)]
    return command, parent, words


def parse_command(line: str) -> str:
    """Have the verb parse its words as `gemma4-triage` would, invoke nothing, and return the verb.

    Raises:
        click.UsageError: the verb does not take these words; typer may carry a click of its own.
    """
    command, parent, words = find_command(line)
    # Without its parent a command keeps other help options than it has, for later tests too.
    command.make_context(command.name, words, parent=parent)
    return f"{parent.command_path} {command.name}"


def _open(command: Any, word: str, parent: Any) -> Any:
    # As click does for a line that is run; to make_context a group without a subcommand is an error.
    return command.context_class(command, info_name=word, parent=parent, **command.context_settings)
