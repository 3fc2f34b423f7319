"""Finds functions in an unpacked SGLang by reading its source: nothing of it is imported, and nothing installed.

A name is followed as Python would: through imports (relative ones and stars included), through the branches of `if` and
`try`, and, for a member of a class, through its bases.
"""

from __future__ import annotations

import ast
import difflib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_DEPTH = 12


@dataclass(frozen=True)
class Place:
    """Where a dotted path leads.

    Attributes:
        path: The dotted path of the definition, or of the name where it is bound and not defined in the tree.
        file: The file, relative to the tree.
        line: Counted from 1.
        node: The definition, or the statement that binds the name.
        inherited: Whether a base class has it, so that the class of the asked path has no attribute of its own.
    """

    path: str
    file: str
    line: int
    node: ast.stmt
    inherited: bool = False

    @property
    def text(self) -> list[str]:
        """The definition's lines as Python prints its syntax tree, without docstrings and comments."""
        return ast.unparse(_without_docstrings(self.node)).splitlines()

    @property
    def arguments(self) -> list[str] | None:
        """The names of a function's arguments with their stars, None for what is no function."""
        if not isinstance(self.node, _FUNCTIONS):
            return None
        has = self.node.args
        stars = ([f"*{has.vararg.arg}"] if has.vararg else [], [f"**{has.kwarg.arg}"] if has.kwarg else [])
        plain = [one.arg for one in (*has.posonlyargs, *has.args)]
        return [*plain, *stars[0], *(one.arg for one in has.kwonlyargs), *stars[1]]


class SourceTree:
    """A folder that holds the package `sglang`, as a wheel unpacks to."""

    def __init__(self, root: Path) -> None:
        """Take the folder; files are read when they are asked for.

        Args:
            root: The folder that contains `sglang/`.

        Raises:
            FileNotFoundError: There is no package `sglang` in it.
        """
        if not (root / "sglang").is_dir():
            raise FileNotFoundError(f"{root} holds no package sglang")
        self.root = root
        self._modules: dict[str, ast.Module | None] = {}

    def resolve(self, path: str) -> Place | None:
        """Return the definition or binding behind a dotted path, None where it leads nowhere."""
        words = path.split(".")
        for length in range(len(words) - 1, 0, -1):
            module = ".".join(words[:length])
            if self._parsed(module) is not None:
                return self._walk(module, words[length:])
        return None

    def has_module(self, path: str) -> bool:
        """Say whether a dotted path is a module, and no name in one."""
        return self._parsed(path) is not None

    def definitions(self, name: str) -> Iterator[Place]:
        """Yield every function and class of that name, in files whose text has its `def` or `class`."""
        wanted = re.compile(rf"\b(?:def|class)\s+{re.escape(name)}\b")
        for file in sorted((self.root / "sglang").rglob("*.py")):
            if wanted.search(file.read_text(encoding="utf-8", errors="replace")):
                module = ".".join(file.relative_to(self.root).with_suffix("").parts).removesuffix(".__init__")
                tree = self._parsed(module)
                if tree is not None:
                    yield from self._named(name, module, tree, module)

    def _named(self, name: str, module: str, within: ast.Module | ast.ClassDef, prefix: str) -> Iterator[Place]:
        for one in _statements(within.body):
            if isinstance(one, (*_FUNCTIONS, ast.ClassDef)) and one.name == name:
                yield self._place(module, f"{prefix}.{name}", one)
            if isinstance(one, ast.ClassDef):
                yield from self._named(name, module, one, f"{prefix}.{one.name}")

    def _walk(self, module: str, names: list[str], depth: int = 0) -> Place | None:
        found = self._in_module(module, names[0], depth)
        for name in names[1:]:
            if found is None or not isinstance(found.node, ast.ClassDef):
                return None
            found = self._member(found, name, depth)
        return found

    def _in_module(self, module: str, name: str, depth: int) -> Place | None:
        tree = self._parsed(module)
        if tree is None or depth > _DEPTH:
            return None
        last: Place | None = None
        for one in _statements(tree.body):
            found = self._bound_by(module, one, name, depth)
            # A definition wins over an assignment such as `name = None` in the other branch.
            if found is not None and (last is None or isinstance(found.node, (*_FUNCTIONS, ast.ClassDef))):
                last = found
        return last

    def _bound_by(self, module: str, one: ast.stmt, name: str, depth: int) -> Place | None:
        path = f"{module}.{name}"
        if isinstance(one, (*_FUNCTIONS, ast.ClassDef)):
            return self._place(module, path, one) if one.name == name else None
        if isinstance(one, ast.ImportFrom):
            origin = self._origin(module, one)
            for alias in one.names:
                if alias.name == "*":
                    found = self._in_module(origin, name, depth + 1)
                    if found is not None:
                        return found
                elif (alias.asname or alias.name) == name:
                    alone = ast.copy_location(ast.ImportFrom(one.module, [alias], one.level), one)
                    return self._in_module(origin, alias.name, depth + 1) or self._unfollowed(
                        module, path, alone, origin, alias.name
                    )
            return None
        if isinstance(one, ast.Import):
            bound = [alias for alias in one.names if (alias.asname or alias.name.partition(".")[0]) == name]
            return self._place(module, path, ast.copy_location(ast.Import(bound), one)) if bound else None
        if isinstance(one, (ast.Assign, ast.AnnAssign)):
            targets = one.targets if isinstance(one, ast.Assign) else [one.target]
            if any(isinstance(target, ast.Name) and target.id == name for target in targets):
                return self._place(module, path, one)
        return None

    def _unfollowed(self, module: str, path: str, one: ast.stmt, origin: str, name: str) -> Place | None:
        """Say whether an import binds the name: one from elsewhere does, one of a name that SGLang lacks does not."""
        inside = origin.partition(".")[0] == "sglang"
        known = not inside or self._parsed(f"{origin}.{name}") is not None
        return self._place(module, path, one) if known else None

    def _member(self, owner: Place, name: str, depth: int) -> Place | None:
        assert isinstance(owner.node, ast.ClassDef)
        module = _module_of(owner.file)
        for one in _statements(owner.node.body):
            found = self._bound_by(module, one, name, depth)
            if found is not None:
                return Place(f"{owner.path}.{name}", found.file, found.line, found.node, owner.inherited)
        if depth > _DEPTH:
            return None
        for base in owner.node.bases:
            words = ast.unparse(base).partition("[")[0].split(".")
            above = self._walk(module, words, depth + 1) if all(word.isidentifier() for word in words) else None
            if above is not None and isinstance(above.node, ast.ClassDef):
                found = self._member(above, name, depth + 1)
                if found is not None:
                    return Place(found.path, found.file, found.line, found.node, True)
        return None

    def _origin(self, module: str, one: ast.ImportFrom) -> str:
        if not one.level:
            return one.module or ""
        words = module.split(".")
        package = words if self._file(module).name == "__init__.py" else words[:-1]
        return ".".join([*package[: len(package) - one.level + 1], *([one.module] if one.module else [])])

    def _file(self, module: str) -> Path:
        whole = self.root.joinpath(*module.split("."))
        return whole / "__init__.py" if whole.is_dir() else whole.with_name(f"{whole.name}.py")

    def _parsed(self, module: str) -> ast.Module | None:
        if module not in self._modules:
            file = self._file(module) if module.partition(".")[0] == "sglang" else None
            there = file is not None and file.is_file()
            self._modules[module] = ast.parse(file.read_text(encoding="utf-8")) if there and file else None
        return self._modules[module]

    def _place(self, module: str, path: str, node: ast.stmt) -> Place:
        return Place(path, str(self._file(module).relative_to(self.root)), node.lineno, node)


def likeness(one: Place, other: Place) -> float:
    """Return the share of lines that two definitions have in common, 0 to 1, in difflib's sense."""
    return difflib.SequenceMatcher(None, one.text, other.text, autojunk=False).ratio()


def _module_of(file: str) -> str:
    return file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements, and those in branches of `if`, `try` and `with`, which run in the same scope."""
    for one in body:
        yield one
        if isinstance(one, (ast.If, ast.Try, ast.With)):
            yield from _statements(one.body)
            if not isinstance(one, ast.With):
                yield from _statements(one.orelse)
            if isinstance(one, ast.Try):
                for handler in one.handlers:
                    yield from _statements(handler.body)
                yield from _statements(one.finalbody)


class _Strip(ast.NodeTransformer):
    def generic_visit(self, node: ast.AST) -> ast.AST:
        super().generic_visit(node)
        body = getattr(node, "body", None)
        if (
            isinstance(node, (*_FUNCTIONS, ast.ClassDef))
            and isinstance(body, list)
            and ast.get_docstring(node) is not None
        ):
            node.body = node.body[1:] or [ast.Pass()]
        return node


def _without_docstrings(node: ast.stmt) -> ast.AST:
    return _Strip().visit(ast.parse(ast.unparse(node)))
