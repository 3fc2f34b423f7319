"""How help is shown: examples stay lines to paste, and words of the command line have no brackets to spare."""

from __future__ import annotations

import re
from typing import Any

_EXAMPLE = re.compile(r"^For example: (gemma4-triage .+)$", re.MULTILINE)
# click leaves a paragraph alone that begins with this.
_AS_IT_IS = "\b"


def tidy_help(command: Any) -> None:
    """Change how a click command, and those below it, show their help."""
    for below in getattr(command, "commands", {}).values():
        tidy_help(below)
    if command.help:
        # A list of commands shows the first sentence of each; click would cut it to one line.
        summary = re.sub(r"\s+", " ", re.split(r"\n\n|(?<=\.)\s", command.help.strip())[0]).rstrip(".")
        command.get_short_help_str = lambda limit=0: summary
        command.help = _EXAMPLE.sub(f"{_AS_IT_IS}\nFor example:\n  \\1", command.help)
    for parameter in command.params:
        if parameter.param_type_name == "argument":
            _show_by_name(parameter)
        # A typer older than we ask for, as beside an engine that brings its own, keeps its own words for types.
        elif hasattr(parameter, "display_type") and parameter.metavar is None and not parameter.is_flag:
            kind = parameter.display_type(None).strip("<>")
            parameter.metavar = "NUMBER" if kind.startswith(("int", "float")) else "PATH" if kind == "path" else "TEXT"


def _show_by_name(argument: Any) -> None:
    """Show an argument by its name alone: its type says nothing that its help does not."""
    name = argument.metavar or argument.name.upper()
    if not name.startswith(("[", "-")):
        name += "..." if argument.nargs != 1 and not name.endswith("...") else ""
        name = name if argument.required else f"[{name}]"
    argument.get_usage_pieces = lambda ctx: [name]
    argument.display_type_rich = lambda ctx: None
