"""What can be told of a server's start before it starts: its arguments, its model and its port.

SGLang reports a misspelt argument after it has been imported, and a port in use after it has loaded the model.
"""

from __future__ import annotations

import ast
import errno
import os
import re
import socket
from collections.abc import Collection, Iterator, Mapping, Sequence
from difflib import get_close_matches
from importlib.machinery import PathFinder
from pathlib import Path

from gemma4_triage.errors import UsageMistake

PORT, HOST = 30000, "127.0.0.1"
"""SGLang's defaults, in each release that is supported."""

_CONFIGS = ("config.json", "params.json")
_SURE = frozenset({"--model-path", "--port", "--host", "--attention-backend"})
_OPTION = re.compile(r"--[a-z][a-z0-9_-]*")
_FIELD = re.compile(r"A(?:nnotated)?\[(?:Optional\[)?(int|float|[A-Za-z]+)\b")


def sglang_options() -> dict[str, str]:
    """Return the options of the installed SGLang's server, from its source; empty if they are not found there.

    The source is not imported, which takes many seconds. Both forms are read: calls of add_argument (0.5.13), and
    fields of which SGLang makes options (0.5.23). There may be a few too many, and none too few. The value is "int" or
    "float" where an option takes one such number, else "".
    """
    # find_spec of a submodule would import SGLang.
    found = PathFinder.find_spec("sglang")
    if found is None or not found.submodule_search_locations:
        return {}
    server = Path(next(iter(found.submodule_search_locations))) / "srt"
    kinds: dict[str, set[str | None]] = {}
    for path in (server / "server_args.py", *sorted((server / "arg_groups").rglob("*.py"))):
        try:
            tree = ast.parse(path.read_text())
        except (OSError, UnicodeDecodeError, SyntaxError):
            continue
        for node in ast.walk(tree):
            for name, kind in _declared(node):
                kinds.setdefault(name, set()).add(kind)
    # Of what is said of an option only calls and fields say its type; where they disagree it is none.
    said = {name: [kind for kind in found if kind is not None] for name, found in kinds.items()}
    options = {name: found[0] if len(found) == 1 else "" for name, found in said.items()}
    if not options.keys() >= _SURE:
        return {}
    # argparse.BooleanOptionalAction makes a second option of one.
    return {f"--no-{name.removeprefix('--')}": "" for name in options} | options


def _declared(node: ast.AST) -> Iterator[tuple[str, str | None]]:
    """Yield the options that a node of SGLang's source names, with the kind of number; None if it does not say."""
    if isinstance(node, ast.Call):
        named = {keyword.arg: keyword.value for keyword in node.keywords}
        kind = ast.unparse(named["type"]) if "type" in named and "nargs" not in named else ""
        for one in node.args:
            if isinstance(one, ast.Constant) and isinstance(one.value, str) and _OPTION.fullmatch(one.value):
                yield one.value, kind if kind in ("int", "float") else ""
    elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        text = ast.unparse(node.annotation)
        found = _FIELD.match(text)
        kind = None if found is None else found[1] if found[1] in ("int", "float") else ""
        yield f"--{node.target.id.replace('_', '-')}", "" if "type_parser" in text or "nargs" in text else kind
    elif isinstance(node, ast.Constant) and isinstance(node.value, str) and _OPTION.fullmatch(node.value):
        yield node.value, None


def check_arguments(arguments: Sequence[str], ours: Collection[str], options: Mapping[str, str]) -> None:
    """Refuse arguments that SGLang's parser would not take.

    Args:
        arguments: those for SGLang.
        ours: options of `serve`.
        options: SGLang's, as sglang_options; without any nothing is refused but what is ours.

    Raises:
        UsageMistake: An argument is an option of `serve` behind `--`, or no option of either, or lacks its number.
    """
    for at, word in enumerate(arguments):
        name, equals, value = word.partition("=")
        if name in options:
            _check_number(name, value if equals else "".join(arguments[at + 1 : at + 2]), options[name])
            continue
        if not name.startswith("--") or len(name) == 2:
            continue
        if name in ours:
            raise UsageMistake(f"{name} is an option of serve and stands behind --", f"put {name} before the --")
        # argparse takes the beginning of an option, and says itself if it is that of several.
        if not options or any(one.startswith(name) for one in options):
            continue
        near_ours = get_close_matches(name, ours, 1, 0.75)
        near = [*near_ours, *get_close_matches(name, options, 3 - len(near_ours), 0.7)]
        hint = f"near it: {', '.join(near)}" if near else "sglang serve --help lists SGLang's"
        raise UsageMistake(f"{name} is an option neither of serve nor of the installed SGLang", hint)


def _check_number(name: str, value: str, kind: str) -> None:
    if not kind:
        return
    what = "a whole number" if kind == "int" else "a number"
    if not value or value.startswith("--"):
        raise UsageMistake(f"{name} has no value", f"it takes {what}")
    try:
        int(value) if kind == "int" else float(value)
    except ValueError:
        raise UsageMistake(f"{name} {value!r} is not {what}", f"{name} takes {what}") from None


def check_model(arguments: Sequence[str]) -> None:
    """Refuse a model path that is plainly a path and leads nowhere; anything else may be a name on a hub.

    Raises:
        UsageMistake: Nothing is there.
    """
    for option in ("--model-path", "--model", "--speculative-draft-model-path", "--speculative-draft-model"):
        path = value_of(arguments, option)
        if path and (path.startswith(("/", "./", "../", "~")) or path.count("/") > 1) and "://" not in path:
            if not os.path.exists(os.path.expanduser(path)):
                raise UsageMistake(f"{option} {path} is not there", "name a folder that holds a config.json")
            if os.path.isdir(path) and not any(os.path.isfile(os.path.join(path, name)) for name in _CONFIGS):
                raise UsageMistake(f"{option} {path} holds no config.json", "name the folder of the model itself")


def check_port(arguments: Sequence[str]) -> None:
    """Bind the port that the server will listen on, and let it go again.

    A file of `--config` may name another port, and of several nodes only the first listens; both are left alone.

    Raises:
        UsageMistake: It is no port, in use, or may not be bound.
    """
    text, node = value_of(arguments, "--port"), value_of(arguments, "--node-rank")
    if (text is None and value_of(arguments, "--config") is not None) or node not in (None, "0"):
        return
    host, port = value_of(arguments, "--host") or HOST, PORT
    if text is not None:
        if not text.isdecimal() or not 0 < int(text) < 65536:
            raise UsageMistake(f"--port {text!r} is no port", "name a number from 1 to 65535")
        port = int(text)
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


def value_of(arguments: Sequence[str], option: str) -> str | None:
    """Return the last value that an option is given, as `--x V` or `--x=V`; None if it is not given."""
    found = None
    for at, word in enumerate(arguments):
        if word == option and at + 1 < len(arguments):
            found = arguments[at + 1]
        elif word.startswith(f"{option}="):
            found = word.partition("=")[2]
    return found
