"""No circles of files: whoever reads a module reads down, and never comes back to where they began."""

import tomllib
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["root_packages"]


def circle(graph: grimp.ImportGraph) -> list[str]:
    """Return the modules of one circle, the first of them again at the end; none if there is no circle."""
    try:
        TopologicalSorter(
            {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
        ).prepare()
    except CycleError as error:
        return error.args[1]
    return []


@pytest.fixture
def graph():
    """Return every import of our packages: at the top of a file, inside a function, and for types only."""
    return grimp.build_graph(*PACKAGES, cache_dir=None)


def test_every_package_is_looked_at():
    """So that a package that is added is part of the graph here, and of what import-linter reads."""
    where = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]["find"]["where"]
    packages = {path.parent.name for folder in where for path in (ROOT / folder).glob("*/__init__.py")}
    assert packages == set(PACKAGES)


def test_no_modules_import_each_other_in_a_circle(graph):
    assert circle(graph) == []


def test_a_circle_would_be_found(graph):
    graph.add_import(importer="gemma4_dumps.errors", imported="gemma4_triage.cli.app")

    found = circle(graph)

    assert found[0] == found[-1]
    assert {"gemma4_dumps.errors", "gemma4_triage.cli.app"} <= set(found)
