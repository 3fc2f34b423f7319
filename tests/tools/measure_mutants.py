"""Measures how many of 100 seeded mutants of checks, dumps and diagnose the tests kill.

`python tests/tools/measure_mutants.py draw` draws mutants of this tree with cosmic-ray's operators, and writes them to
tests/tools/mutants.json. `... run` applies each to a copy of the tree, wherever its function stands by now, and runs
the tests of its package until one fails. So a draw that was made at one commit is repeated at another. Needs the extra
`measure`: `pip install -c constraints.txt -e '.[measure]'`. A mutant that changes nothing counts as a survivor, and so
does one whose lines are gone.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from difflib import SequenceMatcher
from pathlib import Path
from queue import Queue

ROOT = Path(__file__).parents[2]
LIST = Path(__file__).with_name("mutants.json")
PACKAGES = ("triage", "runtime_patches", "kernels", "repro", "dumps")
SEED = 22
LIMIT_S = 300
_LEFT_OUT = shutil.ignore_patterns(".git", ".venv*", "__pycache__", ".*_cache", "runs")


@dataclass(frozen=True)
class Package:
    """A package that is measured.

    Args:
        folder: Of its sources.
        count: How many mutants are drawn.
        tests: Patterns of the test files that see it.
        slow_tests: Likewise, for a mutant that survives the others.
    """

    folder: str
    count: int
    tests: tuple[str, ...]
    slow_tests: tuple[str, ...]


MEASURED = {
    "checks": Package(
        folder="runtime_patches/gemma4_runtime/checks",
        count=25,
        tests=(
            *("test_batch_shapes.py", "test_geometry.py", "test_slot_checks.py", "test_page_ledger.py"),
            *("test_leak_auditor.py", "test_leak_history.py", "test_guard.py"),
        ),
        # They import SGLang.
        slow_tests=("test_probe_*.py",),
    ),
    "dumps": Package(
        folder="dumps/gemma4_dumps",
        count=40,
        tests=(
            *("test_dump_redaction.py", "test_dump_tensors.py", "test_dump_schema.py", "test_audit_findings.py"),
            *("test_dump_reader.py", "test_dump_writer.py", "test_dump_store.py", "test_cli_dumps.py"),
        ),
        slow_tests=("test_cli_export.py", "test_dump_kills.py", "test_committed_evidence.py", "test_report*.py"),
    ),
    "diagnose": Package(
        folder="triage/gemma4_triage/diagnose",
        count=35,
        tests=(
            *("test_diagnose_rules.py", "test_diagnose_corpus.py", "test_diagnose_grouping.py"),
            *("test_diagnose_logs.py", "test_diagnose_contained.py", "test_diagnose_damage.py"),
            *("test_diagnose_catalog.py", "test_cli_diagnose.py"),
        ),
        slow_tests=("test_golden_output.py", "test_golden_documents.py", "test_report*.py"),
    ),
}


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


def draw(root: Path) -> list[Mutant]:
    """Return the mutants, of at most one per place; the same ones for the same sources."""
    from cosmic_ray.mutating import mutate_code
    from cosmic_ray.plugins import get_operator

    chosen: list[Mutant] = []
    for name, package in MEASURED.items():
        generator = random.Random(f"{SEED} {name}")
        places = _places(root, package.folder)
        found: list[Mutant] = []
        for place in generator.sample(sorted(places), len(places)):
            path = place[0]
            text = (root / path).read_text()
            for operator, occurrence in generator.sample(places[place], len(places[place])):
                changed = mutate_code(text, get_operator(operator)(), occurrence)
                if changed is not None and _does_something_else(text, changed):
                    found.append(_described(name, path, operator, text, changed))
                    break
            if len(found) == package.count:
                break
        chosen += found
    return chosen


def _places(root: Path, folder: str) -> dict[tuple[str, int, int], list[tuple[str, int]]]:
    """Return where something can be changed, as (path, line, column), and by what: an operator and its occurrence."""
    from cosmic_ray.ast import ast_nodes, get_ast
    from cosmic_ray.plugins import get_operator, operator_names

    # These two need to be told the name of a variable.
    operators = {name: get_operator(name) for name in sorted(operator_names()) if "/Variable" not in name}
    places: dict[tuple[str, int, int], list[tuple[str, int]]] = {}
    for path in sorted((root / folder).rglob("*.py")):
        nodes = list(ast_nodes(get_ast(path.read_text())))
        for name, kind in operators.items():
            operator = kind()
            begins = [begin for node in nodes for begin, _ in operator.mutation_positions(node)]
            for occurrence, (line, column) in enumerate(begins):
                places.setdefault((str(path.relative_to(root)), line, column), []).append((name, occurrence))
    return places


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


def _does_something_else(text: str, changed: str) -> bool:
    """Say whether it is a program, and another one: `int | None` in an annotation is never evaluated."""
    try:
        trees = [_WithoutAnnotations().visit(ast.parse(one)) for one in (text, changed)]
    except SyntaxError:
        return False
    return ast.dump(trees[0]) != ast.dump(trees[1])


def _described(package: str, path: str, operator: str, text: str, changed: str) -> Mutant:
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
    """Every function and class with its first line (from 0) and the one after its last, outer ones first."""
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


def locate(root: Path, mutant: Mutant) -> tuple[Path, str] | None:
    """Return the file where the mutant's function stands now, and its text with the mutant; None if it is not there.

    The file of old comes first, then the one place with a function of this name, then the one with these lines.
    """
    files = {root / mutant.path: 0} | {path: 1 for name in PACKAGES for path in sorted((root / name).rglob("*.py"))}
    texts = {path: path.read_text() for path in files if path.exists()}
    holding = {path: text for path, text in texts.items() if mutant.before in text}
    named = [(path, text) for path, found in holding.items() if (text := _replaced(found, mutant, mutant.function))]
    anywhere = [(path, text) for path, found in holding.items() if (text := _replaced(found, mutant, ""))]
    for places in (named, anywhere):
        same = [place for place in places if place[0] == root / mutant.path]
        if chosen := same or (places if len(places) == 1 else []):
            return chosen[0][0].relative_to(root), chosen[0][1]
    return None


def _replaced(text: str, mutant: Mutant, function: str) -> str | None:
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


def run(root: Path, mutants: list[Mutant], workers: int, report: Path | None) -> int:
    """Test every mutant in copies of the tree, print kills and survivors, and return the number of survivors."""
    results: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory(prefix="mutants-") as scratch:
        copies: Queue[Path] = Queue()
        for number in range(workers):
            copy = Path(scratch) / str(number)
            shutil.copytree(root, copy, ignore=_LEFT_OUT, symlinks=True)
            copies.put(copy)
        for name, package in MEASURED.items():
            copy = copies.get()
            outcome, took_s = _test(copy, package)
            copies.put(copy)
            print(f"{name}: its tests take {took_s:.0f} s without a mutant", flush=True)
            if outcome != "survived":
                raise SystemExit(f"the tests of {name} fail without a mutant")

        def test(mutant: Mutant) -> dict[str, object]:
            copy = copies.get()
            try:
                found = locate(copy, mutant)
                if found is None:
                    return asdict(mutant) | {"outcome": "gone"}
                original = (copy / found[0]).read_text()
                (copy / found[0]).write_text(found[1])
                outcome, took_s = _test(copy, MEASURED[mutant.package])
                (copy / found[0]).write_text(original)
                return asdict(mutant) | {"outcome": outcome, "now": str(found[0]), "took_s": round(took_s)}
            finally:
                copies.put(copy)

        with ThreadPoolExecutor(workers) as pool:
            for result in pool.map(test, mutants):
                results.append(result)
                print(f"{len(results)}/{len(mutants)} {result['outcome']}: {result['path']}", flush=True)
                if report is not None:
                    report.write_text(json.dumps(results, indent=1) + "\n")
    return _print(results)


def _test(copy: Path, package: Package) -> tuple[str, float]:
    """Run the package's tests in the copy: killed, killed by the time limit, or survived; and the seconds."""
    began = time.monotonic()
    outcome = _run_tests(copy, package.tests)
    if outcome == "survived":
        outcome = _run_tests(copy, package.slow_tests)
    return outcome, time.monotonic() - began


def _run_tests(copy: Path, patterns: tuple[str, ...]) -> str:
    folders = [copy / "tests" / part for part in ("unit", "contract")]
    files = [str(path) for test in patterns for folder in folders for path in sorted(folder.rglob(test))]
    # Of the golden files those that start a process or a server say nothing of these packages.
    words = ["-x", "-q", "-p", "no:cacheprovider", "--no-header", "-k", "not quality and not bench and not repro"]
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(str(copy / name) for name in PACKAGES),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    process = subprocess.Popen(
        [sys.executable, "-m", "pytest", *words, *files],
        cwd=copy,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        code = process.wait(LIMIT_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return "killed by the time limit"
    return "survived" if code == 0 else "killed"


def _print(results: list[dict[str, object]]) -> int:
    survivors = [one for one in results if not str(one["outcome"]).startswith("killed")]
    for one in survivors:
        print(f"\n{one['outcome']}: {one['path']}, {one['function'] or 'module'} ({one['operator']})")
        for mark, text in (("-", str(one["before"])), ("+", str(one["after"]))):
            print("".join(f"{mark} {line}\n" for line in text.splitlines()), end="")
    totals = Counter(str(one["package"]) for one in results)
    lost = Counter(str(one["package"]) for one in survivors)
    for name in totals:
        print(f"{name}: {totals[name] - lost[name]} of {totals[name]} killed")
    print(f"all: {len(results) - len(survivors)} of {len(results)} killed")
    return len(survivors)


def main() -> None:
    """Draw, or run what was drawn."""
    parser = argparse.ArgumentParser(description="Measure how many seeded mutants the tests kill.")
    parser.add_argument("what", choices=("draw", "run"))
    parser.add_argument("--tree", type=Path, default=ROOT, help="the checkout that is measured")
    parser.add_argument("--list", type=Path, default=LIST, help="where the drawn mutants are")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--report", type=Path, help="write every mutant's outcome there, as JSON")
    asked = parser.parse_args()
    if asked.what == "draw":
        asked.list.write_text(json.dumps([asdict(one) for one in draw(asked.tree)], indent=1) + "\n")
        return
    mutants = [Mutant(**one) for one in json.loads(asked.list.read_text())]
    run(asked.tree.resolve(), mutants, asked.workers, asked.report)


if __name__ == "__main__":
    main()
