"""Mutants of SGLang's own functions: put in without a trace, and judged one by one in the committed draws."""

import json
import sys
import traceback

import pytest

from diagnose_examples import ROOT
from measure_sglang_mutants import SCORES, has_effect, outer_function, put_in, table
from mutants_of_code import Mutant

pytestmark = pytest.mark.releases("0.5.13.post1", "0.5.23")

DRAWS = sorted((ROOT / "docs" / "mutations").glob("sglang-*"))
SOURCE = """
def plain(value):
    half = value // 2
    return half


class Pool:
    @staticmethod
    def taken(pages):
        return [page for page in pages if page > 0]

    @property
    def first(self):
        def inner():
            raise IndexError(1 + 1)

        return inner()
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    (tmp_path / "mutated_package").mkdir()
    (tmp_path / "mutated_package" / "__init__.py").touch()
    (tmp_path / "mutated_package" / "pool.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path / "mutated_package"
    for name in ("mutated_package.pool", "mutated_package"):
        sys.modules.pop(name, None)


def mutate(folder, function, before, after):
    line = SOURCE[: SOURCE.index(before)].count("\n") + 1
    put_in(folder, Mutant("", "pool.py", function, "", before, after, 0), line, "mutated_package")
    return sys.modules["mutated_package.pool"]


@pytest.mark.parametrize("kept", [False, True])
def test_whoever_has_the_function_gets_the_mutant(module, kept):
    from mutated_package.pool import plain  # pyright: ignore[reportMissingImports]

    found = mutate(module, "plain", "value // 2", "value * 2")
    assert (plain if kept else found.plain)(4) == 8


def test_a_method_behind_a_decorator_and_a_function_inside_another(module):
    found = mutate(module, "Pool.taken", "page > 0", "page > 1")
    assert found.Pool.taken([0, 1, 2]) == [2]
    found = mutate(module, "Pool.first.inner", "1 + 1", "1 - 1")
    with pytest.raises(IndexError, match="0") as raised:
        _ = found.Pool().first
    # The traceback shows the release's own line, at its own number.
    assert traceback.extract_tb(raised.value.__traceback__)[-1].line == "raise IndexError(1 + 1)"


def test_a_line_outside_of_functions_has_none():
    import ast

    tree = ast.parse(SOURCE)
    named = [found and found.name for line in (1, 3, 10, 15) if (found := outer_function(tree, line)) or True]
    assert named == [None, "plain", "Pool.taken", "Pool.first"]


@pytest.mark.parametrize("draw", DRAWS, ids=lambda folder: folder.name)
def test_a_committed_draw_is_judged_whole_and_the_page_has_its_table(draw):
    page = (ROOT / "docs" / "mutations.md").read_text(encoding="utf-8")
    assert table(draw) in page
    judged = json.loads((draw / "judged.json").read_text())
    assert {score for score, _ in judged.values()} <= set(SCORES)
    numbers = {one["number"] for one in json.loads((draw / "drawn.json").read_text())}
    assert numbers == {json.loads(line)["number"] for line in (draw / "rows.jsonl").read_text().splitlines()}


def test_only_what_is_seen_or_differs_has_an_effect():
    nothing = {"noticed": "nothing", "tokens_changed": False, "idle_changed": False, "accept_changed": False}
    assert not has_effect({"named": [], "effect": nothing})
    assert has_effect({"named": [], "effect": nothing | {"accept_changed": True}})
    assert has_effect({"named": [], "effect": nothing | {"noticed": "checker"}})
    assert has_effect({"named": [{}], "effect": None})
