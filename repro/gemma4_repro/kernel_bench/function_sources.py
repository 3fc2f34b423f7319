"""Functions of a Python file as text, without running it. Imports no torch."""

from __future__ import annotations

import ast
from collections.abc import Collection


def function_sources(text: str, names: Collection[str]) -> dict[str, str]:
    """Return those of the named functions that stand at the file's top level, decorators included.

    Raises:
        SyntaxError: it is no Python.
    """
    lines, found = text.splitlines(), {}
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef) and node.name in names:
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            found[node.name] = "\n".join(lines[first - 1 : node.end_lineno])
    return found
