"""Mutants of Python sources by cosmic-ray's operators: where they can be, what they change, and how they are put in."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import SequenceMatcher
from pathlib import Path


@dataclass(frozen=True)
class Mutant:
    """One changed piece of a function: what stands there, what takes its place, and the how-manieth piece of that text.

    Attributes:
        function: Its name, with its class; empty for the module's own statements.
    """

    package: str
    path: str
    function: str
    operator: str
    before: str
    after: str
    occurrence: int


def places(root: Path, paths: list[Path]) -> dict[tuple[str, int, int], list[tuple[str, int]]]:
    """Return where something can be changed, as (path, line, column), and by what: an operator and its occurrence."""
    from cosmic_ray.ast import ast_nodes, get_ast
    from cosmic_ray.plugins import get_operator, operator_names

    # These two need to be told the name of a variable.
    operators = {name: get_operator(name) for name in sorted(operator_names()) if "/Variable" not in name}
    found: dict[tuple[str, int, int], list[tuple[str, int]]] = {}
    for path in paths:
        nodes = list(ast_nodes(get_ast(path.read_text())))
        for name, kind in operators.items():
            operator = kind()
            begins = [begin for node in nodes for begin, _ in operator.mutation_positions(node)]
            for occurrence, (line, column) in enumerate(begins):
                found.setdefault((str(path.relative_to(root)), line, column), []).append((name, occurrence))
    return found


class _WithoutAnnotations(ast.NodeTransformer):
    def visit_arg(self, node: ast.arg) -> ast.AST:
        node.annotation = None
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        self.generic_visit(node)
        node.annotation = ast.Constant(None)
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        self.generic_visit(node)
        node.returns = None
        return node


def does_something_else(text: str, changed: str) -> bool:
    """Say whether it is a program, and another one: `int | None` in an annotation is never evaluated."""
    try:
        trees = [_WithoutAnnotations().visit(ast.parse(one)) for one in (text, changed)]
    except SyntaxError:
        return False
    return ast.dump(trees[0]) != ast.dump(trees[1])


def described(package: str, path: str, operator: str, text: str, changed: str) -> Mutant:
    old, new = text.splitlines(keepends=True), changed.splitlines(keepends=True)
    blocks = SequenceMatcher(None, old, new, autojunk=False).get_opcodes()
    edits = [block for block in blocks if block[0] != "equal"]
    first, last = edits[0], edits[-1]
    before, after = "".join(old[first[1] : last[2]]), "".join(new[first[3] : last[4]])
    function, offset = _function_at(text, first[1])
    ahead = "".join(old[: first[1]])[offset:]
    return Mutant(package, path, function, operator, before, after, ahead.count(before))


def _function_at(text: str, line: int) -> tuple[str, int]:
    """Return the innermost function or class of a line (from 0): its name, and at which character it begins."""
    found = ("", 0)
    for name, begin, end in _functions(text):
        if begin <= line < end:
            found = (name, len("".join(text.splitlines(keepends=True)[:begin])))
    return found


def _functions(text: str) -> Iterator[tuple[str, int, int]]:
    """Yield every function and class with its first line (from 0) and the one after its last, outer ones first."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)

    def walk(node: ast.AST, outer: str) -> Iterator[tuple[str, int, int]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, kinds):
                name = f"{outer}.{child.name}" if outer else child.name
                begin = min([child.lineno, *(one.lineno for one in child.decorator_list)]) - 1
                yield name, begin, child.end_lineno or child.lineno
                yield from walk(child, name)
            else:
                yield from walk(child, outer)

    yield from walk(ast.parse(text), "")


def replaced(text: str, mutant: Mutant, function: str) -> str | None:
    lines = text.splitlines(keepends=True)
    spans = [
        (len("".join(lines[:begin])), len("".join(lines[:end])))
        for name, begin, end in _functions(text)
        if name == function
    ]
    for begin, end in spans if function else [(0, len(text))]:
        pieces = text[begin:end].split(mutant.before)
        if len(pieces) > mutant.occurrence + 1:
            ahead = mutant.before.join(pieces[: mutant.occurrence + 1])
            behind = mutant.before.join(pieces[mutant.occurrence + 1 :])
            return text[:begin] + ahead + mutant.after + behind + text[end:]
    return None
