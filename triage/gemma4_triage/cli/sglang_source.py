"""Values that SGLang's source works out when it makes its parser, read without running it.

Choices are lists of another module, keys of a class's table, names of an enum: what its expressions come to is found by
following names through the modules that they are imported from.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path

_DEEPEST = 12
_ADDITIONS = ("add", "append")
_COPIES = ("list", "set", "tuple", "sorted", "frozenset")


class Module:
    """A module of SGLang's source.

    Attributes:
        path: of its file.
        root: the folder of the package `sglang`.
        modules: those that were read before, by path.
    """

    def __init__(self, path: Path, root: Path, modules: dict[Path, Module]) -> None:
        self.path, self.root, self.modules = path, root, modules

    @cached_property
    def tree(self) -> ast.Module:
        """The parsed file; an empty one if it cannot be read."""
        try:
            return ast.parse(self.path.read_text())
        except (OSError, UnicodeDecodeError, SyntaxError):
            return ast.Module([], [])

    @cached_property
    def _named(self) -> dict[str, list[ast.AST]]:
        """What each name stands for, wherever in the module it is given."""
        named: dict[str, list[ast.AST]] = {}
        for node in ast.walk(self.tree):
            for name in _names_given(node):
                named.setdefault(name, []).append(node)
        return named

    @cached_property
    def _added(self) -> dict[str, tuple[str, ...]]:
        """The words that are added, on whatever condition, to what a name stands for."""
        added: dict[str, tuple[str, ...]] = {}
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _ADDITIONS:
                name, words = node.func.value, [one.value for one in node.args if isinstance(one, ast.Constant)]
                if isinstance(name, ast.Name):
                    added[name.id] = (*added.get(name.id, ()), *map(str, words))
        return added

    def values(self, node: ast.AST | None, depth: int = 0) -> tuple[str, ...]:
        """Return the words of the list, table or enum that an expression is; empty if the source does not say them."""
        if depth > _DEEPEST or node is None:
            return ()
        if isinstance(node, ast.List | ast.Tuple | ast.Set):
            return self._words(node.elts, depth + 1)
        if isinstance(node, ast.Dict):
            return self._words(node.keys, depth + 1)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            parts = self.values(node.left, depth + 1), self.values(node.right, depth + 1)
            return parts[0] + parts[1] if all(parts) else ()
        if isinstance(node, ast.Call):
            return self._of_call(node, depth + 1)
        if isinstance(node, ast.ListComp):
            return self._of_enum_names(node, depth + 1)
        if isinstance(node, ast.Name | ast.Attribute):
            found, module = self._resolved(node, depth + 1)
            values = () if found is None else module.values(found, depth + 1)
            return values + self._added.get(node.id, ()) if values and isinstance(node, ast.Name) else values
        if isinstance(node, ast.ClassDef):
            return tuple(name for one in node.body for name in _names_given(one) if isinstance(one, ast.Assign))
        return ()

    def text(self, node: ast.AST | None) -> str:
        """Return the text that a constant is; "" for anything else."""
        return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""

    def _words(self, nodes: Iterable[ast.AST | None], depth: int) -> tuple[str, ...]:
        """Return what constants, or names of constants, say; nothing if one says nothing.

        None itself, as in `Literal[None, "full"]`, is no word to type.
        """
        found = [self._resolved(one, depth)[0] if isinstance(one, ast.Name) else one for one in nodes]
        values = [one.value for one in found if isinstance(one, ast.Constant)]
        sure = len(values) == len(found) and all(isinstance(value, str | int | None) for value in values)
        return tuple(str(value) for value in values if value is not None) if sure else ()

    def _of_call(self, node: ast.Call, depth: int) -> tuple[str, ...]:
        called = node.func
        if isinstance(called, ast.Attribute) and called.attr == "keys":
            return self.values(called.value, depth)
        if isinstance(called, ast.Name) and called.id in _COPIES and len(node.args) == 1:
            return self.values(node.args[0], depth)
        if isinstance(called, ast.Name) and not node.args:
            found, module = self._resolved(called, depth)
            if isinstance(found, ast.FunctionDef) and isinstance(found.body[-1], ast.Return):
                return module.values(found.body[-1].value, depth)
        return ()

    def _of_enum_names(self, node: ast.ListComp, depth: int) -> tuple[str, ...]:
        """Return the names of an enum in small letters, for `[m.name.lower() for m in Enum]`."""
        loop = node.generators[0]
        if len(node.generators) > 1 or loop.ifs or ast.unparse(node.elt) != f"{ast.unparse(loop.target)}.name.lower()":
            return ()
        return tuple(name.lower() for name in self.values(loop.iter, depth))

    def _resolved(self, node: ast.Name | ast.Attribute, depth: int) -> tuple[ast.AST | None, Module]:
        """Return what a name, or a class's field, stands for, with the module whose names that is said in."""
        if isinstance(node, ast.Attribute):
            if not isinstance(node.value, ast.Name):
                return None, self
            owner, module = self._resolved(node.value, depth)
            fields = owner.body if isinstance(owner, ast.ClassDef) else []
            given = [one for one in fields if node.attr in _names_given(one)]
            return (_value_given(given[0]) if len(given) == 1 else None), module
        given = self._named.get(node.id, [])
        # What is imported at several places is one thing.
        if len({ast.dump(one) for one in given}) != 1 or depth > _DEEPEST:
            return None, self
        if isinstance(given[0], ast.ImportFrom):
            return self._imported(given[0], node.id, depth)
        return _value_given(given[0]), self

    def _imported(self, node: ast.ImportFrom, name: str, depth: int) -> tuple[ast.AST | None, Module]:
        package, *below = (node.module or "").split(".")
        if package != "sglang" or node.level:
            return None, self
        folder = self.root.joinpath(*below)
        path = folder / "__init__.py" if folder.is_dir() else folder.with_suffix(".py")
        module = self.modules.setdefault(path, Module(path, self.root, self.modules))
        there = next(one.name for one in node.names if (one.asname or one.name) == name)
        return module._resolved(ast.Name(there), depth + 1)


def _names_given(node: ast.AST) -> list[str]:
    """Return the names that a statement gives something."""
    if isinstance(node, ast.Assign):
        return [one.id for one in node.targets if isinstance(one, ast.Name)]
    if isinstance(node, ast.AnnAssign):
        return [node.target.id] if isinstance(node.target, ast.Name) and node.value is not None else []
    if isinstance(node, ast.ImportFrom):
        return [one.asname or one.name for one in node.names]
    return [node.name] if isinstance(node, ast.ClassDef | ast.FunctionDef) else []


def _value_given(node: ast.AST) -> ast.AST | None:
    return node.value if isinstance(node, ast.Assign | ast.AnnAssign) else node
