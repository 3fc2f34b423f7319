"""What the runtime reads of SGLang is where the table of the installed release says."""

import ast
from importlib.util import find_spec
from pathlib import Path

import pytest

import gemma4_runtime
from gemma4_runtime import release
from gemma4_runtime.errors import UnsupportedRelease
from gemma4_runtime.release.names import NAMES
from gemma4_runtime.releases import BASE, KNOWN, installed_or_base

pytestmark = pytest.mark.releases("0.5.13.post1", "0.5.23")

HERE = NAMES[installed_or_base()]


def read_names() -> set[str]:
    """Return every name that a module of the runtime imports from `gemma4_runtime.release`."""
    return {
        alias.name
        for path in Path(gemma4_runtime.__path__[0]).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and node.module == "gemma4_runtime.release"
        for alias in node.names
    }


@pytest.mark.parametrize("name", [name for name, path in HERE.items() if path])
def test_a_name_of_the_table_is_there(name):
    try:
        assert getattr(release, name) is not None
    except NotImplementedError as error:
        # A module that can be imported beside CUDA alone is read instead.
        assert "only for CUDA" in str(error)
        module, _, attribute = HERE[name].rpartition(".")
        assert f"class {attribute}:" in Path(find_spec(module).origin).read_text()


def test_the_table_has_what_is_read_and_nothing_else():
    assert set(HERE) == read_names()


def test_every_known_release_has_a_table_of_the_same_names():
    assert set(NAMES) == set(KNOWN)
    assert all(set(table) == set(NAMES[BASE]) for table in NAMES.values())


def test_what_a_release_has_no_place_for_is_refused_by_name(monkeypatch):
    monkeypatch.setitem(release._PLACES, "piecewise_context", None)
    with pytest.raises(UnsupportedRelease, match=r"has nothing in the place of sglang\.srt\.compilation\."):
        from gemma4_runtime.release import piecewise_context  # noqa: F401


def test_a_name_that_is_not_in_the_table_is_no_name():
    with pytest.raises(ImportError, match="cannot import name 'no_such_name'"):
        from gemma4_runtime.release import no_such_name  # noqa: F401
