"""Docstrings follow the rules in every file but those that broke them before, and that list only shrinks."""

import importlib.util
import textwrap

import pytest


@pytest.fixture(scope="module")
def ratchet(repository):
    path = repository / "tests/tools/docstring_ratchet.py"
    spec = importlib.util.spec_from_file_location("docstring_ratchet", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


BEFORE = '''
"""Says things."""
import os

class Row:
    """A row of the table."""
    width: int

    def cells(self, most: int = 3) -> list[str]:
        """Return its cells."""
        return []
'''


@pytest.mark.parametrize(
    ("old", "new"), [("import os", "import os.path\nfrom a import b"), ("return []", "x = 1\n        return [x]")]
)
def test_imports_and_bodies_may_change(ratchet, old, new):
    assert ratchet.fingerprint(BEFORE.replace(old, new)) == ratchet.fingerprint(BEFORE)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("Says things.", "Says other things."),
        ("Return its cells.", "Return them."),
        ("most: int = 3", "most: int = 4"),
        ("def cells", "def columns"),
        ("width: int", "width: int\n    height: int"),
        ("return []", "return []\n\ndef more(): ..."),
    ],
)
def test_names_arguments_fields_and_docstrings_may_not(ratchet, old, new):
    assert ratchet.fingerprint(BEFORE.replace(old, new)) != ratchet.fingerprint(BEFORE)


LISTED, FOUND = {"a.py": "1"}, {"a.py": ["3: D205: no blank line"]}


@pytest.mark.parametrize(
    ("listed", "found", "now", "said"),
    [
        (LISTED, FOUND, {"a.py": "1"}, None),
        ({}, FOUND, {"a.py": "1"}, "D205"),
        (LISTED, {}, {"a.py": "1"}, "breaks no rule any more"),
        (LISTED, FOUND, {"a.py": "2"}, "has changed"),
        (LISTED, {}, {}, "gone"),
    ],
)
def test_what_is_a_problem(ratchet, listed, found, now, said):
    problems = ratchet.problems(listed, found, now)
    assert said in problems[0] if said else problems == []


def test_the_list_never_grows_and_follows_a_move(ratchet):
    moved = {"b/a.py": FOUND["a.py"]}
    assert ratchet.updated(LISTED, moved, {"b/a.py": "1"}) == {"b/a.py": "1"}
    assert ratchet.updated(LISTED, moved, {"b/a.py": "2"}) == {}
    assert ratchet.updated(LISTED, FOUND | {"b.py": ["1: D100: none"]}, {"a.py": "1", "b.py": "3"}) == LISTED
    # A file that has changed keeps the fingerprint of the freeze, so that it stays a problem until it is in line.
    assert ratchet.updated(LISTED, FOUND, {"a.py": "2"}) == LISTED


def test_no_file_joins_the_list(ratchet):
    """Neither by hand nor by `--freeze --again`: the number is lowered as the list shrinks."""
    assert len(ratchet.read_list()) <= 257


@pytest.mark.parametrize(
    ("docstring", "rule"),
    [
        ("Of a line with POOL_SIZES.", "fragment"),
        ("As of the last line.", "fragment"),
        ("With what each server has of its own.", "fragment"),
        ("Why the exit code is 5.", "fragment"),
        ("The exit code.", "fragment"),
        ("None if there is none.", "fragment"),
        ("Around `forward`: one more.", "fragment"),
        ("Every dump, newest first.", "fragment"),
        ("Anneal it.", None),
        ("Return the row.\n\nwidth: of a cell.", "args"),
        ("Return the row.\n\nArgs:\n    width: of a cell.\n\nReturns:\n    width: no list of arguments.", "args"),
        ("Return the row.\n\nArgs:\n    width: of a cell.", None),
        ("Return the row of a line with POOL_SIZES.", None),
        ("Return the row.\n\nheight: no argument of it.", None),
    ],
)
def test_rules_that_ruff_does_not_have(ratchet, docstring, rule):
    text = f'def row(width):\n    """{textwrap.indent(docstring, "    ").lstrip()}\n    """\n'
    found = list(ratchet.own_findings(text))
    assert [rule] == [one.split(": ")[1] for one in found] if rule else found == []


def test_a_class_may_be_a_noun(ratchet):
    assert list(ratchet.own_findings('"""What a row has."""\nclass A:\n    """What a cell has."""\n')) == []
    assert list(ratchet.own_findings('"""Of a row."""\n')) != []


@pytest.mark.parametrize("name", ["@property\ndef row", "@cached_property\ndef row", "def test_row"])
def test_a_property_may_be_a_noun_and_a_test_may_state_a_fact(ratchet, name):
    assert list(ratchet.own_findings(f'{name}(self):\n    """The row is one."""\n')) == []


def test_ruff_follows_the_convention_of_the_project(ratchet, tmp_path, repository):
    (tmp_path / "pyproject.toml").write_bytes((repository / "pyproject.toml").read_bytes())
    (tmp_path / "a.py").write_text(
        '"""Say it."""\n\n\ndef f(a, b):\n    """do it\n\n    Args:\n        a: one.\n    """\n'
    )
    (tmp_path / "b.py").write_text('"""Say it."""\n\n\ndef f(a, b):\n    return a\n')
    ratchet.subprocess.run(["git", "init", "--quiet", tmp_path], check=True)
    codes = {path: {line.split(": ")[1] for line in lines} for path, lines in ratchet.findings(tmp_path).items()}
    assert codes == {"a.py": {"D403", "D415", "D417"}}
