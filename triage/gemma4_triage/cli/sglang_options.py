"""The options of the installed SGLang's server, read from its source: importing it takes many seconds.

Both forms are read: calls of add_argument (0.5.13), and fields of which SGLang makes options (0.5.23). No other field,
call or text is an option. What the source does not say plainly of an option is left open.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.machinery import PathFinder
from importlib.metadata import PackageNotFoundError, entry_points, requires
from pathlib import Path

from gemma4_triage.cli.sglang_source import Module

_SURE = frozenset({"--model-path", "--port", "--host", "--attention-backend"})
_OPTION = re.compile(r"--[a-z][a-z0-9_-]*")
_TWO_SWITCHES = "argparse.BooleanOptionalAction"
_SWITCHES = (
    *("store_true", "store_false", "store_const", "help", _TWO_SWITCHES),
    *("DeprecatedAction", "DeprecatedStoreTrueAction"),
)
_FIELD = re.compile(r"A(?:nnotated)?\[(?:Optional\[)?(\w+)(?: \| None)?\b(\[[^\]]*\])?")
_TYPES = {"int": "int", "float": "float", "json.loads": "json", "json_list_type": "json", "human_readable_int": "count"}
"""What functions that SGLang reads a value by take, by their names in its source; any other takes a text."""


@dataclass(frozen=True)
class Option:
    """What an option takes.

    Attributes:
        kind: "int", "float", "count" (a whole number such as 128k), "json" or "text" for such values, "switch" for
            none, "" where the source leaves it open.
        choices: the values that it takes; empty where it takes any, and where the source does not say which.
        many: it takes several, a word each.
    """

    kind: str = ""
    choices: tuple[str, ...] = ()
    many: bool = False


def sglang_options() -> Mapping[str, Option]:
    """Return the options by name; empty if SGLang's source is not found, or looks like none of the known forms."""
    # find_spec of a submodule would import SGLang.
    found = PathFinder.find_spec("sglang")
    if found is None or not found.submodule_search_locations:
        return {}
    return _options_of(Path(next(iter(found.submodule_search_locations))))


@cache
def _options_of(package: Path) -> Mapping[str, Option]:
    server = package / "srt"
    files = (server / "server_args.py", *sorted((server / "arg_groups").rglob("*.py")))
    modules: dict[Path, Module] = {}
    said: dict[str, set[Option]] = {}
    for path in files:
        module = modules.setdefault(path, Module(path, package, modules))
        for node in ast.walk(module.tree):
            for name, option in _declared(node, module):
                # A mere mention of a name says nothing of its type; where two places disagree it is left open.
                said.setdefault(name, set()).update(() if option is None else (option,))
    options = {name: next(iter(found)) if len(found) == 1 else Option() for name, found in said.items()}
    if not options.keys() >= _SURE:
        return {}
    # `sglang serve` takes this one out before its parser sees it, and argparse adds the other.
    return options | {"--model-type": Option("text"), "--help": Option("switch")}


def other_plugins() -> bool:
    """Return whether SGLang has a plugin that is neither ours nor its own: it may add to the choices of an option."""
    try:
        asked = {_plain_name(line) for line in requires("sglang") or ()}
    except PackageNotFoundError:
        asked = set()
    known = {"gemma4-triage", *asked}
    owners = (one.dist for one in entry_points(group="sglang.srt.plugins"))
    return any(owner is None or _plain_name(owner.name) not in known for owner in owners)


def _plain_name(requirement: str) -> str:
    """Return the name of a distribution as it compares, without what a requirement says behind it."""
    name = re.match(r"[\w.-]*", requirement)
    return re.sub(r"[-_.]+", "-", name[0] if name else "").lower()


def _declared(node: ast.AST, module: Module) -> Iterator[tuple[str, Option | None]]:
    """Yield the options that a node of SGLang's source makes, with what they take; None if it does not say."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "add_argument":
        words = {keyword.arg: keyword.value for keyword in node.keywords}
        option, names = _of_call(words, module), [module.text(one) for one in node.args]
    elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and _is_option(node.annotation):
        words = _words_of_field(node.annotation)
        name = module.text(words.get("cli_name")) or f"--{node.target.id.replace('_', '-')}"
        option, names = _of_field(node.annotation, words, module), [name, *module.values(words.get("aliases"))]
    else:
        return
    if "action" in words and ast.unparse(words["action"]) == _TWO_SWITCHES:
        names += [f"--no-{name.removeprefix('--')}" for name in names]
    yield from ((name, option) for name in names if _OPTION.fullmatch(name))


def _is_option(annotation: ast.expr) -> bool:
    """Return whether SGLang makes an option of a field: of `A[type, "help"]` and `A[type, Arg(...)]` without no_cli."""
    if not ast.unparse(annotation).startswith(("A[", "Annotated[")):
        return False
    assert isinstance(annotation, ast.Subscript)
    said = annotation.slice.elts[1:] if isinstance(annotation.slice, ast.Tuple) else []
    made = any(isinstance(one, ast.Call | ast.Constant | ast.JoinedStr | ast.BinOp) for one in said)
    return made and "no_cli" not in _words_of_field(annotation)


def _of_call(words: Mapping[str | None, ast.expr], module: Module) -> Option:
    if "action" in words and "choices" not in words:
        return _of_action(words["action"])
    if module.text(words.get("nargs")) not in ("", "+", "*"):
        return Option()
    return Option(_kind(words.get("type")), module.values(words.get("choices")), bool(module.text(words.get("nargs"))))


def _of_action(action: ast.expr) -> Option:
    text = action.value if isinstance(action, ast.Constant) else ast.unparse(action)
    return Option("switch") if text in _SWITCHES else Option()


def _kind(function: ast.expr | None) -> str:
    return "text" if function is None else _TYPES.get(ast.unparse(function), "text")


def _words_of_field(annotation: ast.expr) -> dict[str | None, ast.expr]:
    """Return what SGLang's `Arg(...)` says of a field."""
    calls = [one for one in ast.walk(annotation) if isinstance(one, ast.Call) and ast.unparse(one.func) == "Arg"]
    return {keyword.arg: keyword.value for call in calls[:1] for keyword in call.keywords}


def _of_field(annotation: ast.expr, words: Mapping[str | None, ast.expr], module: Module) -> Option | None:
    found = _FIELD.match(ast.unparse(annotation))
    if found is None:
        return None
    if "action" in words:
        return _of_action(words["action"])
    if found[1] in ("Dict", "dict") and "type_parser" not in words:
        return Option()
    choices = module.values(words.get("choices"))
    if found[1] == "Literal":
        choices = choices or module.values(ast.parse(found[2] or "[]", mode="eval").body)
        return Option("int" if all(word.isdecimal() for word in choices) else "text", choices)
    if "type_parser" in words:
        return Option(_kind(words["type_parser"]), choices) if "nargs" not in words else Option()
    if found[1] in ("List", "list"):
        return Option(_TYPES.get((found[2] or "").strip("[]"), "text"), choices, True)
    if "nargs" in words or found[1] == "Union":
        return Option("text", choices, True) if module.text(words.get("nargs")) == "*" and choices else Option()
    if found[1] == "bool":
        return Option("switch")
    return Option(_TYPES.get(found[1], "text"), choices)
