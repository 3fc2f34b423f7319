"""What can be told of a server's start before it starts: its arguments, its model and its port.

SGLang reports a misspelt argument after it has been imported, and a port in use after it has loaded the model.
"""

from __future__ import annotations

import errno
import json
import os
import re
import socket
import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from difflib import get_close_matches
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple

from gemma4_triage.cli.sglang_options import Option, other_plugins
from gemma4_triage.errors import EnvironmentCannot, UsageMistake

PORT, HOST = 30000, "127.0.0.1"
"""SGLang's defaults, in each release that is supported."""

_CONFIGS = ("config.json", "params.json")
_MOST_CHOICES = 16


def with_model(arguments: Sequence[str]) -> list[str]:
    """Return SGLang's arguments with a model that stands first and alone, as in `sglang serve MODEL`, by its option."""
    if arguments and not arguments[0].startswith("-") and not named(arguments, "--model-path", "--model"):
        return ["--model-path", *arguments]
    return list(arguments)


def with_home(arguments: Sequence[str]) -> list[str]:
    """Return SGLang's arguments with the home folder in paths that begin with `~`.

    A shell puts it there only where the word begins so, not in `--model-path=~/model`, and SGLang puts it nowhere.
    """
    found = list(arguments)
    for at, word in enumerate(arguments):
        name, equals, value = word.partition("=")
        if name in _PATHS and equals:
            found[at] = f"{name}={os.path.expanduser(value)}"
        elif at and arguments[at - 1] in _PATHS:
            found[at] = os.path.expanduser(word)
    return found


_MODELS = ("--model-path", "--model", "--speculative-draft-model-path", "--speculative-draft-model")
_PATHS = frozenset((*_MODELS, "--tokenizer-path", "--tokenizer", "--config"))


def named(arguments: Sequence[str], *options: str) -> bool:
    """Return whether one of the options stands on a command line."""
    return any(word.partition("=")[0] in options for word in arguments)


def check_arguments(arguments: Sequence[str], ours: Collection[str], options: Mapping[str, Option]) -> None:
    """Refuse arguments that SGLang's parser would not take.

    Args:
        arguments: those for SGLang.
        ours: options of `serve`.
        options: SGLang's, as sglang_options; without any nothing is refused but what is ours.

    Raises:
        UsageMistake: An argument is an option of `serve` behind `--`, or no option of either and no value of one, or
            its value is missing or is none that it takes; or no model is named.
    """
    taken = _TAKES_NOTHING
    for at, word in enumerate(arguments):
        if not _looks_like_an_option(word):
            if taken.values == 0 and options:
                hint = _WHOSE.format(taken.name) if taken.name else _FIRST
                raise UsageMistake(f"{word!r} is no option, and no value of one", hint)
            taken = _Taken(taken.name, max(0, taken.values - 1))
            continue
        name, equals, value = word.partition("=")
        option = options.get(name) or _abbreviated(name, options)
        if option is None:
            _check_known(name, ours, options)
            taken = _Taken(name, _ANY)
            continue
        values = [value] if equals else list(takewhile(lambda one: not _looks_like_an_option(one), arguments[at + 1 :]))
        for value in values[: None if option.many else 1] or [""]:
            _check_value(name, value, bool(equals), option)
        many = _ANY if option.many or not option.kind else int(option.kind != "switch")
        taken = _Taken(name, 0 if equals else many)
    asks = named(arguments, "--model-path", "--model", "--config", "--help", "-h")
    if options and not asks and not any(word.startswith("--mod") for word in arguments):
        raise UsageMistake("no model is named", "add --model-path MODEL, a folder or a name on Hugging Face")


class _Taken(NamedTuple):
    """The option that stood last, and how many more values it takes."""

    name: str
    values: int


_ANY = 10**6
_TAKES_NOTHING = _Taken("", 0)
_WHOSE = "what stands before it, {0}, takes no such value"
_FIRST = "name the model once, by --model-path MODEL or first and alone, and write all else as options"


def _looks_like_an_option(word: str) -> bool:
    """Return what argparse does: a negative number is a value, and so is what has a space in it."""
    return word.startswith("-") and len(word) > 1 and " " not in word and not _NEGATIVE.fullmatch(word)


_NEGATIVE = re.compile(r"-\d+|-\d*\.\d+")


def _abbreviated(name: str, options: Mapping[str, Option]) -> Option | None:
    """Return the option that a beginning of its name means; None for none, and for several."""
    found = [one for one in options if one.startswith(name)] if len(name) > 2 else []
    return options[found[0]] if len(found) == 1 else None


def _check_known(name: str, ours: Collection[str], options: Mapping[str, Option]) -> None:
    if name in ("--", "-h"):
        return
    if name in ours:
        raise UsageMistake(f"{name} is an option of serve and stands behind --", f"put {name} before the --")
    if not options:
        return
    # argparse takes the beginning of one option, and refuses that of several.
    several = [one for one in options if one.startswith(name)]
    if several:
        meant = [*(one for one in ours if one.startswith(name)), *several]
        raise UsageMistake(f"{name} is the beginning of several options", f"write one of them: {_listed(meant)}")
    # With one dash only: `-tp` for --tp-size.
    meant = name if name.startswith("--") else f"-{name}"
    near = sorted((one for one in options if one.startswith(meant)), key=len)[:3]
    near = near or get_close_matches(meant, ours, 1, 0.75)
    near += [one for one in get_close_matches(meant, options, 3, 0.7) if one not in near][: max(0, 3 - len(near))]
    hint = f"near it: {', '.join(near)}" if near else "sglang serve --help lists SGLang's"
    raise UsageMistake(f"{name} is an option neither of serve nor of the installed SGLang", hint)


def _check_value(name: str, value: str, given: bool, option: Option) -> None:
    """Refuse a value that the option does not take. given: it stands behind an equals sign."""
    if option.kind == "switch":
        if given:
            raise UsageMistake(f"{name} takes no value", f"write {name} alone")
        return
    if not option.kind:
        return
    what = _KINDS[option.kind]
    if not value and not (given and option.kind == "text"):
        hint = f"it takes {_listed(option.choices)}" if option.choices else f"it takes {what}"
        raise UsageMistake(f"{name} has no value", hint)
    try:
        _READERS.get(option.kind, str)(value)
    except ValueError:
        raise UsageMistake(f"{name} {value!r} is not {what}", f"{name} takes {what}") from None
    if option.choices and value not in option.choices and not other_plugins():
        near = get_close_matches(value, option.choices, 2, 0.6)
        hint = f"near it: {', '.join(near)}; " if near else ""
        raise UsageMistake(f"{name} {value!r} is no choice", f"{hint}{name} takes {_listed(option.choices)}")


def _read_count(value: str) -> None:
    """Raises ValueError for what is neither a whole number nor one with a unit, of which Ki and its like take no parts.

    These are the units of SGLang's human_readable_int.
    """
    if not _COUNT.fullmatch(value.strip()):
        int(value)


_COUNT = re.compile(r"\d+(\.\d+)?[kMGT]|\d+[KMGT]i")
_READERS: Mapping[str, Callable[[str], object]] = {
    "int": int,
    "float": float,
    "count": _read_count,
    "json": json.loads,
}
_KINDS = {
    "int": "a whole number",
    "float": "a number",
    "count": "a whole number, as 131072, 128k or 128Ki",
    "json": "JSON",
    "text": "a value",
}


def _listed(choices: Sequence[str]) -> str:
    return ", ".join(choices[:_MOST_CHOICES]) + (", …" if len(choices) > _MOST_CHOICES else "")


def check_model(arguments: Sequence[str]) -> None:
    """Refuse a file of settings that is not there, and a model's path that is plainly one, or is here, and no model's.

    Anything else may be a model's name on a hub.

    Args:
        arguments: SGLang's, as with_home returns them.

    Raises:
        UsageMistake: Nothing is there, or no model.
    """
    for option in _MODELS:
        path = value_of(arguments, option)
        if not path or "://" in path:
            continue
        if path.startswith(("/", "./", "../", "~")) or path.count("/") > 1 or os.path.exists(path):
            if not os.path.exists(path):
                raise UsageMistake(f"{option} {path} is not there", "name a folder that holds a config.json")
            if os.path.isfile(path) and not _is_gguf(path):
                raise UsageMistake(f"{option} {path} is a file, and no GGUF", "name the folder of the model")
            if os.path.isdir(path) and not any(os.path.isfile(os.path.join(path, name)) for name in _CONFIGS):
                raise UsageMistake(f"{option} {path} holds no config.json", "name the folder of the model itself")
    settings = value_of(arguments, "--config")
    if settings is not None and not os.path.isfile(settings):
        raise UsageMistake(f"--config {settings} is no file", "name a file of SGLang's arguments, in YAML")


def _is_gguf(path: str) -> bool:
    """Return whether a file is one that SGLang takes for a model, by its name or its first bytes."""
    if path.endswith(".gguf"):
        return True
    try:
        with open(path, "rb") as file:
            return file.read(4) == b"GGUF"
    except OSError:
        # SGLang cannot read it either, and says why.
        return True


def port_of(arguments: Sequence[str]) -> int:
    """Return the port that the server will listen on, SGLang's default if none is named.

    Raises:
        UsageMistake: It is no port.
    """
    text = value_of(arguments, "--port")
    if text is None:
        return PORT
    if not text.isdecimal() or not 0 < int(text) < 65536:
        raise UsageMistake(f"--port {text!r} is no port", "name a number from 1 to 65535")
    return int(text)


def check_port(arguments: Sequence[str]) -> None:
    """Bind the port that the server will listen on, and let it go again.

    A file of `--config` may name another port, and of several nodes only the first listens; both are left alone.

    Raises:
        UsageMistake: It is no port, in use, or may not be bound.
    """
    text, node = value_of(arguments, "--port"), value_of(arguments, "--node-rank")
    if (text is None and value_of(arguments, "--config") is not None) or node not in (None, "0"):
        return
    host, port = value_of(arguments, "--host") or HOST, port_of(arguments)
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as listener:
            # As the server does: connections of one that has ended do not count.
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
    except socket.gaierror as error:
        raise UsageMistake(f"--host {host} is no address: {error.strerror}", "0.0.0.0 is every address here") from None
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            hint = "end the server that has it, or name another one: --port N"
            raise UsageMistake(f"port {port} of {host} is in use", hint) from None
        hint = "name another one with --host and --port"
        raise UsageMistake(f"port {port} of {host} cannot be had: {error.strerror}", hint) from None


def check_dump_folder(folder: Path, make: bool = True) -> None:
    """Make the folder that dumps will be written to, and write into it.

    Args:
        folder: The folder.
        make: False to look only whether it could be made and written to.

    Raises:
        EnvironmentCannot: One of both is not possible.
    """
    try:
        if make:
            folder.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=folder).close()
            return
        nearest = next(one for one in (folder, *folder.parents) if os.path.lexists(one))
        if not nearest.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        if not os.access(nearest, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        what = f"dump folder: {folder} cannot be written: {error.strerror or error}"
        raise EnvironmentCannot(what, "name another one with --dir") from None


def value_of(arguments: Sequence[str], option: str) -> str | None:
    """Return the last value that an option is given, as `--x V` or `--x=V`; None if it is not given."""
    found = None
    for at, word in enumerate(arguments):
        if word == option and at + 1 < len(arguments):
            found = arguments[at + 1]
        elif word.startswith(f"{option}="):
            found = word.partition("=")[2]
    return found
