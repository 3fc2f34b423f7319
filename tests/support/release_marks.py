"""For which releases of SGLang a test file is, read from its source: without them it may not even import."""

import ast
from functools import cache
from pathlib import Path

from gemma4_runtime.releases import RUNNABLE

_MARK = "pytest.mark.releases"


@cache
def releases_of(path: Path) -> frozenset[str]:
    """Return the releases that some test of a file is for; one without marks asks nothing of SGLang, and is for all.

    Args:
        path: Of a test file, whose marks name releases by strings.
    """
    source = path.read_text(encoding="utf-8")
    if _MARK not in source:
        return frozenset(RUNNABLE)
    tree = ast.parse(source)
    of_the_file = [
        statement.value
        for statement in tree.body
        if isinstance(statement, ast.Assign) and [*map(ast.unparse, statement.targets)] == ["pytestmark"]
    ]
    everywhere = {release for value in of_the_file for release in _named(value)} or RUNNABLE
    return frozenset({*everywhere, *_named(tree)})


def _named(tree: ast.AST) -> list[str]:
    return [
        argument.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and ast.unparse(node.func) == _MARK
        for argument in node.args
        if isinstance(argument, ast.Constant)
    ]
