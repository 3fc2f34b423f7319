"""One form of one thing on the command line: what an option was called elsewhere or before is taken too, unseen.

And what takes several values takes them alike everywhere: the option may be repeated, and commas may stand between.
"""

from __future__ import annotations

import re
from typing import Any

from gemma4_triage.errors import UsageMistake

SAME: tuple[tuple[str, ...], ...] = (
    ("--output", "--out"),
    ("--dir", "--dump-dir"),
    ("--fault", "--faults"),
    ("--backend", "--backends"),
    ("--model", "--models"),
    ("--batch", "--batches"),
    ("--arm", "--arms"),
    ("--timeout", "--time-limit", "--timeout-s"),
)
"""Names of one thing each, today's first: an option that has one is found by the others, unless they are another's."""


OF_A_VERB = {"prune": (("--keep-newest", "--keep"),)}
"""The same of one verb: elsewhere one of the names is of something else."""


SEVERAL = frozenset({"IDS", "NAMES", "SIZES", "COUNTS", "off[,on]"})
"""How help shows an option that takes several values."""


def in_todays_words(words: list[str]) -> list[str]:
    """Return a command line in which minutes of before are times of today: `--max-minutes 5` as `--timeout 5m`."""
    found: list[str] = []
    for at, word in enumerate(words):
        if word == "--":
            return [*found, *words[at:]]
        name, equals, value = word.partition("=")
        if name == _MINUTES:
            found.append(f"--timeout={_minutes(value)}" if equals else "--timeout")
        else:
            found.append(_minutes(word) if at and words[at - 1] == _MINUTES else word)
    return found


def _minutes(value: str) -> str:
    return f"{value}m" if re.fullmatch(r"[\d.]+", value) else value


def as_typed(message: str, typed: list[str]) -> str:
    """Return an error that begins with an option by the old name, and with the value, that its line has."""
    today, _, rest = message.partition(" ")
    written = {word.partition("=")[0] for word in typed}
    names = {name for same in (*SAME, ("--timeout", _MINUTES)) if same[0] == today for name in same[1:]}
    if today in written or not names & written:
        return message
    if _MINUTES in written:
        rest = re.sub(r"^'([\d.]+)m'", r"'\1'", rest)
    return f"{min(names & written)} {rest}; it is called {today} today"


_MINUTES = "--max-minutes"
_PLACE = re.compile(r"DIR|PATH|FILE|X\.\w+")
"""How help shows an option that takes a path."""


def todays_line(command: str) -> str:
    """Return a command that was run once, such as a bench's, with the names that its options have today."""
    today = {old: names[0] for names in SAME for old in names[1:]}
    return " ".join(today.get(word, word) for word in in_todays_words(command.split(" ")))


def take_one_form(command: Any) -> None:
    """Let every option of a click command, and of those below it, have all its names and take several values alike."""
    for below in getattr(command, "commands", {}).values():
        take_one_form(below)
    for parameter in command.params:
        if parameter.param_type_name == "option" and parameter.metavar in SEVERAL:
            _take_several(parameter)
        if parameter.param_type_name == "option" and _PLACE.fullmatch(parameter.metavar or ""):
            _refuse_empty(parameter)
    taken = {name for parameter in command.params for name in parameter.opts}
    for parameter in command.params:
        if others := other_names(parameter.opts, OF_A_VERB.get(command.name or "", ())) - taken:
            _also(parameter, sorted(others))


def other_names(names: list[str], also: tuple[tuple[str, ...], ...] = ()) -> set[str]:
    """Return the other names of what has these. also: names of one thing beside SAME."""
    return {name for same in (*SAME, *also) if {*same} & {*names} for name in {*same} - {*names}}


def _also(parameter: Any, names: list[str]) -> None:
    add_to_parser = parameter.add_to_parser

    def add(parser: Any, ctx: Any) -> None:
        # Only while it is added: help and errors show the names that the option was declared with.
        shown = parameter.opts
        parameter.opts = [*shown, *names]
        try:
            add_to_parser(parser, ctx)
        finally:
            parameter.opts = shown

    parameter.add_to_parser = add


def _refuse_empty(parameter: Any) -> None:
    """Refuse an empty value, as of a variable of the shell that is not set: as a path it would be this folder."""
    consume_value = parameter.consume_value

    def consume(ctx: Any, opts: Any) -> tuple[Any, Any]:
        value, source = consume_value(ctx, opts)
        if value == "" or (isinstance(value, list | tuple) and "" in value):
            raise UsageMistake(f"{parameter.opts[0]} is empty", "name a path; . is this folder")
        return value, source

    parameter.consume_value = consume


def _take_several(parameter: Any) -> None:
    """Let an option be repeated, with commas in each value: the command is told a list, or one text with commas."""
    add_to_parser, consume_value, is_list = parameter.add_to_parser, parameter.consume_value, parameter.multiple

    def add(parser: Any, ctx: Any) -> None:
        parameter.multiple = True
        try:
            add_to_parser(parser, ctx)
        finally:
            parameter.multiple = is_list

    def consume(ctx: Any, opts: Any) -> tuple[Any, Any]:
        value, source = consume_value(ctx, opts)
        if not isinstance(value, list | tuple):
            return value, source
        joined = ",".join(value)
        words = [word.strip() for word in joined.split(",") if word.strip()]
        if is_list and value and not words:
            raise UsageMistake(f"{parameter.opts[0]} names nothing", "leave it out, or name what it takes")
        return (words if is_list else joined), source

    parameter.add_to_parser, parameter.consume_value = add, consume
