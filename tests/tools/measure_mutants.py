"""Measures how many of 100 seeded mutants of checks, dumps and diagnose the tests kill.

`python tests/tools/measure_mutants.py draw` draws mutants of this tree with cosmic-ray's operators, and writes them to
tests/tools/mutants.json. `... run` applies each to a copy of the tree, wherever its function stands by now, and runs
the tests that reach its lines, in this process or in one they start, until one fails. So a draw that was made at one
commit is repeated at another. Needs the extra `measure`: `pip install -c constraints.txt -e '.[measure]'`. A mutant
that changes nothing counts as a survivor, and so does one whose lines are gone or that no test reaches. Tests that
fail without a mutant, under coverage or in a copy of the tree, are named and left out.
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
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from difflib import SequenceMatcher
from pathlib import Path
from queue import Queue
from typing import Any

from contexts_of_tests import FAILED_TESTS
from mutants_of_code import Mutant, described, does_something_else, places, replaced

ROOT = Path(__file__).parents[2]
LIST = Path(__file__).with_name("mutants.json")
PACKAGES = ("triage", "runtime_patches", "kernels", "repro", "dumps")
SEED = 22
LIMIT_S = 300
ALL_TESTS = ""
"""In place of a test's name: the line is reached while tests are collected, so every one may depend on it."""
_LEFT_OUT = shutil.ignore_patterns(".git", ".venv*", "__pycache__", ".*_cache", "runs")


@dataclass(frozen=True)
class Package:
    """A package that is measured.

    Args:
        folder: Of its sources.
        count: How many mutants are drawn.
        tests: Patterns of the test files that see it.
    """

    folder: str
    count: int
    tests: tuple[str, ...]


MEASURED = {
    "checks": Package(
        folder="runtime_patches/gemma4_runtime/checks",
        count=25,
        tests=(
            *("test_batch_shapes.py", "test_geometry.py", "test_slot_checks.py", "test_page_ledger.py"),
            *("test_leak_auditor.py", "test_leak_history.py", "test_guard.py", "test_probe_*.py"),
        ),
    ),
    "dumps": Package(
        folder="dumps/gemma4_dumps",
        count=40,
        tests=(
            *("test_dump_redaction.py", "test_dump_tensors.py", "test_dump_schema.py", "test_audit_findings.py"),
            *("test_dump_reader.py", "test_dump_writer.py", "test_dump_store.py", "test_cli_dumps.py"),
            *("test_cli_export.py", "test_dump_kills.py", "test_committed_evidence.py", "test_report*.py"),
        ),
    ),
    "diagnose": Package(
        folder="triage/gemma4_triage/diagnose",
        count=35,
        tests=(
            *("test_diagnose_rules.py", "test_diagnose_corpus.py", "test_diagnose_grouping.py"),
            *("test_diagnose_logs.py", "test_diagnose_contained.py", "test_diagnose_damage.py"),
            *("test_diagnose_catalog.py", "test_cli_diagnose.py"),
            *("test_golden_output.py", "test_golden_documents.py", "test_report*.py"),
        ),
    ),
}


def draw(root: Path) -> list[Mutant]:
    """Return the mutants, of at most one per place; the same ones for the same sources."""
    from cosmic_ray.mutating import mutate_code
    from cosmic_ray.plugins import get_operator

    chosen: list[Mutant] = []
    for name, package in MEASURED.items():
        generator = random.Random(f"{SEED} {name}")
        found_places = places(root, sorted((root / package.folder).rglob("*.py")))
        found: list[Mutant] = []
        for place in generator.sample(sorted(found_places), len(found_places)):
            path = place[0]
            text = (root / path).read_text()
            for operator, occurrence in generator.sample(found_places[place], len(found_places[place])):
                changed = mutate_code(text, get_operator(operator)(), occurrence)
                if changed is not None and does_something_else(text, changed):
                    found.append(described(name, path, operator, text, changed))
                    break
            if len(found) == package.count:
                break
        chosen += found
    return chosen


def locate(root: Path, mutant: Mutant) -> tuple[Path, str] | None:
    """Return the file where the mutant's function stands now, and its text with the mutant; None if it is not there.

    The file of old comes first, then the one place with a function of this name, then the one with these lines.
    """
    files = {root / mutant.path: 0} | {path: 1 for name in PACKAGES for path in sorted((root / name).rglob("*.py"))}
    texts = {path: path.read_text() for path in files if path.exists()}
    holding = {path: text for path, text in texts.items() if mutant.before in text}
    named = [(path, text) for path, found in holding.items() if (text := replaced(found, mutant, mutant.function))]
    anywhere = [(path, text) for path, found in holding.items() if (text := replaced(found, mutant, ""))]
    for found in (named, anywhere):
        same = [place for place in found if place[0] == root / mutant.path]
        if chosen := same or (found if len(found) == 1 else []):
            return chosen[0][0].relative_to(root), chosen[0][1]
    return None


def run(root: Path, mutants: list[Mutant], workers: int, report: Path | None) -> int:
    """Test every mutant in copies of the tree, print kills and survivors, and return the number of survivors."""
    results: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="mutants-") as scratch:
        copies: Queue[Path] = Queue()
        for number in range(workers):
            copy = Path(scratch) / str(number)
            shutil.copytree(root, copy, ignore=_LEFT_OUT, symlinks=True)
            copies.put(copy)
        reached: dict[str, Reached] = {}
        failing: set[str] = set()
        for name, package in MEASURED.items():
            copy = copies.get()
            began = time.monotonic()
            reached[name], failed = tests_by_line(copy, package)
            failing |= failed
            copies.put(copy)
            for test in sorted(failed):
                print(f"{name}: left out, because it fails without a mutant: {test}", flush=True)
            print(f"{name}: its tests, under coverage, take {time.monotonic() - began:.0f} s", flush=True)

        def test(mutant: Mutant) -> dict[str, Any]:
            copy = copies.get()
            try:
                found = locate(copy, mutant)
                if found is None:
                    return asdict(mutant) | {"outcome": "gone"}
                path = copy / found[0]
                original = path.read_text()
                tests = _reaching(reached[mutant.package].get(str(found[0]), {}), original, found[1])
                began = time.monotonic()
                path.write_text(found[1])
                outcome = _run_tests(copy, MEASURED[mutant.package], tests, failing)
                path.write_text(original)
                took_s = round(time.monotonic() - began)
                return asdict(mutant) | {
                    "outcome": outcome,
                    "now": str(found[0]),
                    "tests": len(tests),
                    "took_s": took_s,
                }
            finally:
                copies.put(copy)

        with ThreadPoolExecutor(workers) as pool:
            for result in pool.map(test, mutants):
                results.append(result)
                print(f"{len(results)}/{len(mutants)} {result['outcome']}: {result['path']}", flush=True)
                if report is not None:
                    report.write_text(json.dumps(results, indent=1) + "\n")
    return _print(results)


Reached = dict[str, dict[int, set[str]]]
"""By source file and line: the tests that reach it, each a file or `FILE::TEST`, or ALL_TESTS."""

_SETTINGS = """[run]
parallel = true
source = {sources}
patch = subprocess
        fork
        _exit
        execv
sigterm = true
data_file = {data}/data
"""


def tests_by_line(copy: Path, package: Package) -> tuple[Reached, set[str]]:
    """Run the package's tests under coverage and return which of them reach each line, and which of them fail.

    Raises:
        SystemExit: the tests cannot be run.
    """
    from coverage import CoverageData
    from coverage.exceptions import DataError

    with tempfile.TemporaryDirectory(prefix="reached-", ignore_cleanup_errors=True) as folder:
        (Path(folder) / "settings").write_text(
            _SETTINGS.format(sources=",".join(str(copy / name) for name in PACKAGES), data=folder)
        )
        words = ["-m", "coverage", "run", f"--rcfile={folder}/settings", "-m", "pytest", "-p", "contexts_of_tests"]
        failures = Path(folder) / "failed"
        code = _pytest(
            copy, [*words, *_OPTIONS, *_files(copy, package)], str(Path(__file__).parent), failures=str(failures)
        )
        failed = set(failures.read_text().splitlines()) if failures.exists() else set()
        if code not in (0, 1) or (code == 1 and not failed):
            raise SystemExit(f"the tests of {package.folder} do not run: pytest's exit code is {code}")
        reached: Reached = {}
        for path in Path(folder).glob("data.*"):
            data = CoverageData(str(path))
            try:
                data.read()
            except DataError:
                # A process that the test killed left half of its file.
                continue
            for source in data.measured_files():
                lines = reached.setdefault(os.path.relpath(source, copy), {})
                for line, contexts in data.contexts_by_lineno(source).items():
                    lines.setdefault(line, set()).update(_name(context) for context in contexts)
        return reached, failed


def _name(context: str) -> str:
    """Return the test of a context; its file where a fixture reached the line, which other tests may share."""
    test, _, when = context.rpartition(" (")
    return test.partition("[")[0] if when == "call)" else test.partition("::")[0]


def _reaching(lines: dict[int, set[str]], original: str, changed: str) -> set[str]:
    """Return the tests that reach a line which the mutant changes, or the first line of its statement."""
    blocks = SequenceMatcher(None, original.splitlines(), changed.splitlines(), autojunk=False).get_opcodes()
    edited = {line for kind, begin, end, _, _ in blocks if kind != "equal" for line in range(begin + 1, end + 1)}
    for node in ast.walk(ast.parse(original)):
        if isinstance(node, ast.stmt):
            body = getattr(node, "body", None)
            end = body[0].lineno - 1 if body else node.end_lineno or node.lineno
            if any(node.lineno <= line <= end for line in edited):
                edited = edited | {node.lineno}
    return set().union(*(lines.get(line, set()) for line in edited))


_OPTIONS = ("-q", "-p", "no:cacheprovider", "--no-header", "-k", "not quality and not bench and not repro")
"""Of the golden files those that start a process or a server say nothing of these packages."""


def _files(copy: Path, package: Package) -> list[str]:
    folders = [copy / "tests" / part for part in ("unit", "contract")]
    found = [path for test in package.tests for folder in folders for path in sorted(folder.rglob(test))]
    return [str(path.relative_to(copy)) for path in found]


def _run_tests(copy: Path, package: Package, tests: set[str], failing: set[str]) -> str:
    """Run the tests that reach a mutant until one fails: killed, killed by the time limit, survived, not reached.

    Args:
        copy: The tree, with the mutant.
        package: What the mutant is of.
        tests: Those that reach it.
        failing: Those that fail without it, which are left out.
    """
    if not tests:
        return "not reached"
    files = {test for test in tests if "::" not in test}
    chosen = sorted(test for test in tests if test.partition("::")[0] not in files) + sorted(files)
    left_out = [word for test in sorted(failing) for word in ("--deselect", test)]
    files_or_tests = _files(copy, package) if ALL_TESTS in tests else chosen
    code = _pytest(copy, ["-m", "pytest", "-x", *_OPTIONS, *left_out, *files_or_tests])
    if code == _NO_TESTS:
        return "not reached"
    return "killed by the time limit" if code is None else "survived" if code == 0 else "killed"


_NO_TESTS = 5
"""pytest's exit code if nothing is left to run."""


def _pytest(copy: Path, words: list[str], *paths: str, failures: str = "") -> int | None:
    """Return the exit code; None if the time limit ended it."""
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join((*(str(copy / name) for name in PACKAGES), *paths)),
        "PYTHONDONTWRITEBYTECODE": "1",
        FAILED_TESTS: failures,
    }
    process = subprocess.Popen(
        [sys.executable, *words],
        cwd=copy,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        return process.wait(LIMIT_S if not paths else 10 * LIMIT_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return None


def _print(results: list[dict[str, Any]]) -> int:
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
