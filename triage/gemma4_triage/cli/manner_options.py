"""Options of every command, before and behind its words: colour, and how much is said."""

from __future__ import annotations

import copy
from typing import Annotated, Any

import typer

from gemma4_triage.cli import completions
from gemma4_triage.errors import UsageMistake
from gemma4_triage.terminal import MANNER

COLORS = ("auto", "always", "never")


def _color(wanted: str | None) -> None:
    if wanted is not None and wanted not in COLORS:
        raise UsageMistake(f"--color {wanted!r} is no choice", f"choices: {', '.join(COLORS)}")
    MANNER.color = wanted or MANNER.color


def _quiet(wanted: bool) -> None:
    MANNER.quiet = wanted or MANNER.quiet


def _verbose(wanted: bool) -> None:
    MANNER.verbose = wanted or MANNER.verbose


# A callback that is told of an option left out changes nothing: the option may stand at another place.
Color = Annotated[
    str | None,
    typer.Option(
        "--color",
        metavar="auto|always|never",
        autocompletion=completions.words(*COLORS),
        callback=_color,
        expose_value=False,
        help="Whether results have colours and links; auto: on a terminal without NO_COLOR.",
    ),
]
Quiet = Annotated[
    bool,
    typer.Option(
        "--quiet", "-q", callback=_quiet, expose_value=False, help="No remarks and no progress; lists show names alone."
    ),
]
Verbose = Annotated[
    bool,
    typer.Option(
        "--verbose", "-v", callback=_verbose, expose_value=False, help="Nothing is left out for being too long."
    ),
]
_NAMES = ("--color", "--quiet", "--verbose")


def take_manner_everywhere(tree: Any) -> None:
    """Let the options that the top of a click tree declares stand behind every command too, unseen in its help."""
    options = [parameter for parameter in tree.params if set(parameter.opts) & set(_NAMES)]
    for command in _below(tree):
        taken = {name for parameter in command.params for name in parameter.opts}
        for option in options:
            if not taken & set(option.opts):
                command.params.append(hidden := copy.copy(option))
                hidden.hidden = True


def _below(command: Any) -> list[Any]:
    return [one for below in getattr(command, "commands", {}).values() for one in (below, *_below(below))]
