"""Docstrings follow the rules in every file; those that have arguments inline are listed, and become fewer."""

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


@pytest.mark.parametrize(
    "docstring",
    ["width: of a cell.", "Return the row. width: of a cell.", "Return it.\n\nIt is wide. width, height: of a cell."],
)
def test_an_argument_inline_is_found(ratchet, docstring):
    text = f'def row(width, height):\n    """{textwrap.indent(docstring, "    ").lstrip()}\n    """\n'
    assert list(ratchet.described_inline(text)) == [(1, "row")]


def test_no_other_colon_is_an_argument(ratchet):
    docstring = "Return the row: one. Raises: none.\n\n    Args:\n        width: of it. width: twice.\n    "
    text = f'def row(width):\n    """{docstring}"""\n'
    assert list(ratchet.described_inline(text)) == []


def test_the_list_of_arguments_inline_only_shrinks(ratchet, tmp_path, repository):
    (tmp_path / "pyproject.toml").write_bytes((repository / "pyproject.toml").read_bytes())
    (tmp_path / "a.py").write_text(
        '"""Say it."""\n\n\ndef old(a):\n    """Say it. a: one."""\n\n\ndef new(a):\n    """Say it. a: one."""\n'
    )
    before = tmp_path / ratchet.BEFORE
    before.parent.mkdir(parents=True)
    before.write_text("a.py gone\na.py old\n")
    ratchet.subprocess.run(["git", "init", "--quiet", tmp_path], check=True)
    said = ratchet.findings(tmp_path)
    assert [("of new " in line) for line in said["a.py"]] == [True]
    assert [("a.py gone" in line) for line in said[ratchet.BEFORE]] == [True]
    ratchet.update(tmp_path)
    assert before.read_text() == "a.py old\n"
