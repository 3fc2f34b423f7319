"""The options of the installed SGLang's server, read from its source: importing it takes many seconds.

Both forms are read: calls of add_argument (0.5.13), and fields of which SGLang makes options (0.5.23). There may be a
few options too many, and none too few; what the source does not say plainly is left open.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.machinery import PathFinder
from importlib.metadata import PackageNotFoundError, entry_points, requires
from pathlib import Path

_SURE = frozenset({"--model-path", "--port", "--host", "--attention-backend"})
_OPTION = re.compile(r"--[a-z][a-z0-9_-]*")
_SWITCHES = ("store_true", "store_false", "store_const", "argparse.BooleanOptionalAction")
_FIELD = re.compile(r"A(?:nnotated)?\[(?:Optional\[)?(\w+)(?: \| None)?\b(\[[^\]]*\])?")
_LEFT_OPEN = ("type_parser", "nargs", "action")


@dataclass(frozen=True)
class Option:
    """What an option takes.

    Attributes:
        kind: "int", "float" or "text" for one such value, "switch" for none, "" where the source leaves it open.
        choices: the values that it takes; empty where the source does not list them.
    """

    kind: str = ""
    choices: tuple[str, ...] = ()


def sglang_options() -> dict[str, Option]:
    """Return the options by name; empty if SGLang's source is not found, or looks like none of the known forms."""
    # find_spec of a submodule would import SGLang.
    found = PathFinder.find_spec("sglang")
    if found is None or not found.submodule_search_locations:
        return {}
    package = Path(next(iter(found.submodule_search_locations)))
    server = package / "srt"
    files = (server / "server_args.py", package / "cli" / "serve.py", *sorted((server / "arg_groups").rglob("*.py")))
    trees = [tree for path in files if (tree := _parsed(path)) is not None]
    lists: dict[str, tuple[str, ...]] = {}
    for tree in trees:
        lists |= _lists(tree, lists)
    said: dict[str, set[Option]] = {}
    for node in (node for tree in trees for node in ast.walk(tree)):
        for name, option in _declared(node, lists):
            # A mere mention of a name says nothing of its type; where two places disagree it is left open.
            said.setdefault(name, set()).update(() if option is None else (option,))
    options = {name: next(iter(found)) if len(found) == 1 else Option() for name, found in said.items()}
    if not options.keys() >= _SURE:
        return {}
    # argparse.BooleanOptionalAction makes a second option of one.
    return {f"--no-{name.removeprefix('--')}": Option() for name in options} | options


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


def _parsed(path: Path) -> ast.Module | None:
    try:
        return ast.parse(path.read_text())
    except (OSError, UnicodeDecodeError, SyntaxError):
        return None


def _lists(tree: ast.Module, known: Mapping[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    """Return the lists of constants that a module names at its top, by name. known: those of others."""
    found: dict[str, tuple[str, ...]] = {}
    for node in tree.body:
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            values = _choices(node.value, {**known, **found})
            found |= {node.targets[0].id: values} if values else {}
    return found


def _choices(node: ast.AST | None, lists: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    """Return the values of a list; empty if the source does not hold all of them."""
    if isinstance(node, ast.Name):
        return lists.get(node.id, ()) if node.id.isupper() else ()
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        parts = _choices(node.left, lists), _choices(node.right, lists)
        return parts[0] + parts[1] if all(parts) else ()
    if not isinstance(node, ast.List | ast.Tuple | ast.Set):
        return ()
    values = [one.value for one in node.elts if isinstance(one, ast.Constant) and isinstance(one.value, str | int)]
    return tuple(map(str, values)) if len(values) == len(node.elts) else ()


def _declared(node: ast.AST, lists: Mapping[str, tuple[str, ...]]) -> Iterator[tuple[str, Option | None]]:
    """Yield the options that a node of SGLang's source names, with what they take; None if it does not say."""
    if isinstance(node, ast.Call):
        option = _of_call({keyword.arg: keyword.value for keyword in node.keywords}, lists)
        for one in node.args:
            if isinstance(one, ast.Constant) and isinstance(one.value, str) and _OPTION.fullmatch(one.value):
                yield one.value, option
    elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        yield f"--{node.target.id.replace('_', '-')}", _of_field(node.annotation, lists)
    elif isinstance(node, ast.Constant) and isinstance(node.value, str) and _OPTION.fullmatch(node.value):
        yield node.value, None


def _of_call(words: Mapping[str | None, ast.expr], lists: Mapping[str, tuple[str, ...]]) -> Option:
    if "action" in words:
        action = words["action"]
        text = action.value if isinstance(action, ast.Constant) else ast.unparse(action)
        return Option("switch") if text in _SWITCHES else Option()
    # Such a call may be of anything; of an option only type, choices or a default say that it takes one value.
    if "nargs" in words or not words.keys() & {"type", "choices", "default"}:
        return Option()
    kind = ast.unparse(words["type"]) if "type" in words else "str"
    return Option({"int": "int", "float": "float"}.get(kind, "text"), _choices(words.get("choices"), lists))


def _of_field(annotation: ast.expr, lists: Mapping[str, tuple[str, ...]]) -> Option | None:
    text = ast.unparse(annotation)
    found = _FIELD.match(text)
    if found is None:
        return None
    if any(f"{word}=" in text for word in _LEFT_OPEN) or found[1] in ("List", "list", "Union", "Dict", "dict"):
        return Option()
    if found[1] == "bool":
        return Option("switch")
    if found[1] == "Literal":
        values = ast.parse(found[2] or "[]", mode="eval").body
        return Option("text", _choices(values, {}))
    named = next((one for one in ast.walk(annotation) if isinstance(one, ast.keyword) and one.arg == "choices"), None)
    kind = {"int": "int", "float": "float"}.get(found[1], "text")
    return Option(kind, _choices(named.value, lists) if named else ())
