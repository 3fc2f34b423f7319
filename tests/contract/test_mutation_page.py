"""docs/mutations.md is made of the committed rows of `repro mutations`, which are those of today's draw."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from gemma4_repro.mutations.draw import draw
from gemma4_repro.mutations.score import State, score

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def page() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_mutation_page", ROOT / "docs" / "make_mutation_page.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_the_page_is_the_rows(page: ModuleType) -> None:
    text = page.PAGE.read_text(encoding="utf-8")
    assert page.page(text) == text


@pytest.mark.slow
def test_every_row_is_of_the_draw_and_scored_as_today(page: ModuleType) -> None:
    for seed, count in page.RUNS.items():
        measured = page.measured(seed)
        rows = measured.rows
        assert tuple(row.mutation for row in rows) == draw(seed, count, measured.sglang_version)
        for row in rows:
            assert score(row.mutation, row.truth, row.sight, row.effect, row.duration_s) == row
            assert row.state is not State.HARNESS


def test_the_rows_name_no_path_of_the_machine_that_ran_them(page: ModuleType) -> None:
    for seed in page.RUNS:
        text = (page.FOLDER / str(seed) / "mutations.jsonl").read_text(encoding="utf-8")
        assert "/tmp" not in text
        assert "/home" not in text
