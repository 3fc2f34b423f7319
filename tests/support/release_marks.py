"""For which releases of SGLang a test file is, read from its source: without them it may not even import."""

import ast
from pathlib import Path

from gemma4_runtime.releases import BASE

DEFAULT = BASE
"""The release of a file that names none; the Makefile's DEFAULT."""


def releases_of(path: Path) -> frozenset[str]:
    """Return the releases that some test of a file is for.

    Args:
        path: Of a test file, whose marks name releases by strings.
    """
    tree = ast.parse(path.read_text(encoding="utf-8"))
    of_the_file = [
        statement.value
        for statement in tree.body
        if isinstance(statement, ast.Assign) and [*map(ast.unparse, statement.targets)] == ["pytestmark"]
    ]
    everywhere = {release for value in of_the_file for release in _named(value)} or {DEFAULT}
    return frozenset(everywhere | set(_named(tree)))


def _named(tree: ast.AST) -> list[str]:
    return [
        argument.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.releases"
        for argument in node.args
        if isinstance(argument, ast.Constant)
    ]
