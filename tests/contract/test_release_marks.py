"""Every test runs somewhere: in one of the runs of continuous integration, on a release that it is for."""

import ast
import itertools
import re
import subprocess
from functools import cache
from pathlib import Path

import pytest
from _pytest.mark.expression import Expression

from gemma4_runtime.releases import RUNNABLE, order
from release_marks import releases_of

ROOT = Path(__file__).resolve().parents[2]
TESTS = ROOT / "tests"
FILES = sorted(TESTS.rglob("test_*.py"))
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
DEFAULT = re.findall(r"^DEFAULT := (.*)$", MAKEFILE, re.MULTILINE)[0]
MODULES = {path.stem: path for path in TESTS.rglob("*.py") if path not in FILES}
"""What tests import of each other's set-up, by the name under which they do."""

FIXTURES = {"attach", "engine_forks", "run_engine", "swa_allocator", "vision_model", "vision_toy"}
"""Of the conftest files, what imports SGLang or starts it."""


def commands(target: str) -> str:
    return subprocess.run(
        ["make", "--dry-run", "--no-print-directory", target], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout


def selection(target: str) -> Expression:
    (found,) = re.findall(r'-m "(.*?)"\n', commands(target).replace("test_release_marks", ""))
    return Expression.compile(found)


@cache
def imported(path: Path) -> frozenset[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {name.name.partition(".")[0] for name in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module.partition(".")[0])
    return frozenset(found)


def imports_sglang(path: Path) -> bool:
    """Say whether a test file, or set-up of tests that it imports, has an import of SGLang."""
    seen, ahead = set(), [path]
    while ahead:
        names = imported(ahead.pop())
        if "sglang" in names:
            return True
        ahead += [MODULES[name] for name in names & MODULES.keys() if name not in seen]
        seen |= names
    return False


def asks_for_sglang(path: Path) -> bool:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    arguments = {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
    return bool(arguments & FIXTURES) or path.parent.name in ("engine", "gpu")


def test_there_is_an_environment_for_every_release_that_a_server_may_run_on():
    found = re.findall(r"^EXTRA-(\S+)\s+:=", MAKEFILE, re.MULTILINE)
    assert sorted(found) == sorted(RUNNABLE)
    assert max(RUNNABLE, key=order) == DEFAULT


def test_every_file_is_for_releases_that_there_are():
    elsewhere = {path.name: releases for path in FILES if not (releases := releases_of(path)) <= set(RUNNABLE)}
    assert elsewhere == {}
    assert all(map(releases_of, FILES))


@pytest.mark.parametrize("marks", itertools.product([False, True], repeat=4), ids=str)
def test_of_the_default_release_a_test_is_in_one_of_two_runs(marks):
    marked = dict(zip(("engine", "gpu", "slow", "smoke"), marks, strict=True))
    runs = [selection(target).evaluate(lambda name, **_: marked[name]) for target in ("test", "test-engine")]
    assert sum(runs) == 1


def test_of_the_others_every_test_that_names_them_is_run():
    """The release's own tests with their marks for the engine, slow ones too, in each file that has such a mark.

    Of the live engine without what the newest release runs as well.
    """
    runs = [line for line in commands("test-releases").splitlines() if "-m pytest" in line]
    assert len(runs) == len(RUNNABLE) - 1
    assert all(f".venv-{release}/" in " ".join(runs) for release in set(RUNNABLE) - {DEFAULT})
    for run in runs:
        chosen, files = re.search(r"reorder -m \"(.+)\" \$\((.*)\)$", run).groups()
        assert chosen == "releases and not twice"
        listed = subprocess.run(
            ["bash", "-c", files], cwd=ROOT, capture_output=True, text=True, check=True
        ).stdout.split()
        marked = {path for path in FILES if "pytest.mark.releases" in path.read_text(encoding="utf-8")}
        assert {ROOT / name for name in listed} == marked


def test_continuous_integration_has_all_three():
    ran = re.findall(r"^part .* make (.*)$", (ROOT / ".ci" / "run").read_text(), re.MULTILINE)
    assert {"test", "test-engine", "test-releases"} <= set(ran)


def test_a_file_that_needs_sglang_says_for_which_releases_it_is():
    """What it has at hand differs by release; other tests are run once, on the newest."""
    silent = [
        str(path.relative_to(TESTS))
        for path in FILES
        if "pytest.mark.releases(" not in path.read_text() and (imports_sglang(path) or asks_for_sglang(path))
    ]
    assert silent == []


def test_what_is_for_one_release_alone_says_why():
    """In a comment above its mark or on its line: what the other has instead, or what is not ported.

    Of a file, of a test, of a class, of one set of parameters.
    """
    silent = [
        f"{path.relative_to(TESTS)}:{line}"
        for path in FILES
        for line in marks_without_a_reason(path.read_text(encoding="utf-8"))
    ]
    assert silent == []


def marks_without_a_reason(source: str) -> list[int]:
    """Return the lines of marks that leave a release out and stand beside no comment."""
    lines = source.splitlines()
    found = []
    for node in ast.walk(ast.parse(source)):
        if not (isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.releases"):
            continue
        releases = {one.value for one in node.args if isinstance(one, ast.Constant)}
        above = lines[node.lineno - 2].strip()
        if not set(RUNNABLE) <= releases and not above.startswith("# ") and "  # " not in lines[node.lineno - 1]:
            found.append(node.lineno)
    return found


@pytest.mark.parametrize(
    ("mark", "silent"),
    [
        ('@pytest.mark.releases("0.5.23")\ndef test_it(): ...', [1]),
        ('# It has it alone.\n@pytest.mark.releases("0.5.23")\ndef test_it(): ...', []),
        ('@pytest.mark.releases("0.5.23")  # It has it alone.\nclass TestIt: ...', []),
        ('pytestmark = [pytest.mark.releases("0.5.13.post1"), pytest.mark.slow]', [1]),
        ('X = pytest.param(1, marks=pytest.mark.releases("0.5.23"))', [1]),
        ('pytestmark = pytest.mark.releases("0.5.13.post1", "0.5.23")', []),
    ],
)
def test_a_mark_without_a_reason_is_found_wherever_it_stands(mark, silent):
    assert marks_without_a_reason(mark) == silent
