"""The command line, run in this process in an environment of its own: a process each takes half a second."""

import io
import os
import subprocess
from collections.abc import Mapping
from contextlib import redirect_stderr, redirect_stdout
from unittest import mock

from gemma4_triage.cli import app


def run_command(words: tuple[str, ...], environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Return what `gemma4-triage WORDS` answers when these are all its variables. To start a server is an error."""
    started = mock.patch("os.execvpe", side_effect=AssertionError("it started a server"))
    variables = mock.patch.dict(os.environ, environment, clear=True)
    with started, variables, redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as err:
        code = app.main(list(words))
    return subprocess.CompletedProcess(words, int(code), out.getvalue(), err.getvalue())
