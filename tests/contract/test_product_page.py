"""docs/products.md is made of the committed rows, and those are whole."""

import importlib.util
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from gemma4_repro.step_bench.plan import StepPlan
from gemma4_repro.step_bench.rows import judge_targets

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def page() -> Iterator[ModuleType]:
    sys.path.insert(0, str(ROOT / "docs"))
    spec = importlib.util.spec_from_file_location("make_product_page", ROOT / "docs" / "make_product_page.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    sys.path.remove(str(ROOT / "docs"))


def test_the_page_is_the_rows(page):
    """If this fails, run: python docs/make_product_page.py."""
    assert (ROOT / "docs" / "products.md").read_text() == page.markdown(*page.read_documents())


def test_the_steps_are_whole_and_judged_as_today(page):
    _, steps, *_ = page.read_documents()
    for document in steps:
        assert (document["wrong"], document["lost"], document["partial"]) == ([], [], "")
        rows = document["rows"]
        assert all(row["layers"] == document["models"][row["model"]]["all_layers"] for row in rows)
        batches = tuple(sorted({row["batch"] for row in rows}))
        arms = tuple({row["arm"]: None for row in rows})
        plan = StepPlan(tuple(document["models"]), batches, None, arms, document["method"]["rounds"], 0.0)
        assert judge_targets(plan, rows) == document["targets"]
        assert {target["status"] for target in document["targets"]} == {"met"}


def test_what_the_manual_says_of_it_is_in_the_rows(page):
    """And above 16 rows the step is that of cuBLAS, within a percent."""
    _, steps, *_ = page.read_documents()
    us = {(row["model"], row["batch"], row["arm"]): row["step_us"]["median"] for d in steps for row in d["rows"]}
    gain = {key[:2]: us[(*key[:2], "all-cublas")] / us[(*key[:2], "all")] for key in us}
    said = (ROOT / "docs" / "patches.md").read_text()
    (paragraph,) = [part for part in said.split("\n\n") if part.startswith("`small-m-linear`")]
    words = re.findall(r"x\d\.\d\d", paragraph)
    cells = [(model, batch) for batch in (1, 8, 16) for model in ("e4b", "e2b", "26b")]
    assert words == [f"x{gain[cell]:.2f}" for cell in cells]
    assert all(abs(gain[model, 64] - 1) < 0.01 for model in ("e4b", "e2b", "26b"))


def test_what_the_manual_says_of_layers_of_one_launch_is_in_the_rows(page):
    *_, steps, _, _, _, _, _, _ = page.read_documents()
    us = {
        (row["model"], row["batch"], row["arm"]): row["step_us"]["median"] for d in reversed(steps) for row in d["rows"]
    }
    gain = {key[:2]: us[(*key[:2], "all-separate")] / us[(*key[:2], "all")] for key in us if key[2] == "all"}
    said = (ROOT / "docs" / "patches.md").read_text()
    (paragraph,) = [part for part in said.split("\n\n") if part.startswith("`layer-tail`")]
    cells = [("e4b", 1), ("e4b", 2), ("e2b", 1), ("e2b", 2), ("e2b", 4)]
    assert re.findall(r"x\d\.\d\d", paragraph) == [f"x{gain[cell]:.2f}" for cell in cells]
    assert all(gain[cell] > 1 for cell in cells)
    assert all(document["wrong"] == document["lost"] == [] for document in steps)


def test_what_the_manual_says_of_streamed_products_is_in_the_rows(page):
    *_, steps, _, _, _, _ = page.read_documents()
    us = {(row["model"], row["batch"], row["arm"]): row["step_us"]["median"] for d in steps for row in d["rows"]}
    gain = {key[:2]: us[(*key[:2], "all-unstreamed")] / us[(*key[:2], "all")] for key in us if key[2] == "all"}
    said = (ROOT / "docs" / "patches.md").read_text()
    (paragraph,) = [part for part in said.split("\n\n") if part.startswith("`streamed-products`")]
    cells = [("e4b", 8), ("e2b", 8), ("26b", 8), ("e4b", 16), ("e2b", 16)]
    assert re.findall(r"x\d\.\d\d", paragraph) == [f"x{gain[cell]:.2f}" for cell in cells]
    assert all(document["wrong"] == document["lost"] == [] for document in steps)


def test_a_step_of_streamed_products_is_never_slower_than_without(page):
    *_, steps, _, _, _, _ = page.read_documents()
    for document in steps:
        (model,) = document["models"]
        us = {(row["batch"], row["arm"]): row["step_us"] for row in document["rows"]}
        for batch in {batch for batch, arm in us if arm == "all"}:
            if batch > 1 or model not in page.STREAMED_AT_ONE_ROW:
                assert us[batch, "all"]["median"] <= us[batch, "all-unstreamed"]["median"]


def test_what_the_manual_says_of_experts_is_in_the_rows(page):
    *_, (step, longer), _, _ = page.read_documents()
    us = {(row["batch"], row["arm"]): row["step_us"]["median"] for row in step["rows"]}
    gain = {batch: us[batch, "all-sglang-experts"] / us[batch, "all"] for batch in (1, 2, 4)}
    said = (ROOT / "docs" / "patches.md").read_text()
    (paragraph,) = [part for part in said.split("\n\n") if part.startswith("`routed-experts`")]
    assert re.findall(r"x\d\.\d\d", paragraph) == sorted({f"x{one:.2f}" for one in gain.values()})
    times = [f"{us[batch, 'all'] / 1000:.2f}" for batch in (1, 2, 4)]
    changes = (ROOT / "CHANGELOG.md").read_text()
    assert f"a step of 26B takes {times[0]}, {times[1]} and {times[2]} ms" in " ".join(changes.split())
    assert all(document["wrong"] == document["lost"] == [] for document in (step, longer))


def test_what_the_manual_says_of_experts_beside_the_dense_mlp_is_in_the_rows(page):
    *_, (step, longer) = page.read_documents()
    us = {(row["batch"], row["arm"]): row["step_us"]["median"] for row in step["rows"]}
    gain = [us[batch, "all-dense-alone"] / us[batch, "all"] for batch in (1, 2, 4)]
    said = (ROOT / "docs" / "patches.md").read_text()
    (paragraph,) = [part for part in said.split("\n\n") if part.startswith("`dense-beside-experts`")]
    assert re.findall(r"x\d\.\d\d", paragraph) == [f"x{one:.2f}" for one in gain]
    times = [f"{us[batch, 'all'] / 1000:.2f}" for batch in (1, 2, 4)]
    changes = (ROOT / "CHANGELOG.md").read_text()
    assert f"a step of 26B takes {times[0]}, {times[1]} and {times[2]} ms with it" in " ".join(changes.split())
    assert min(gain) > 1
    assert all(document["wrong"] == document["lost"] == [] for document in (step, longer))


def test_what_the_manual_says_of_how_a_step_begins_and_ends_is_in_the_rows(page):
    gains = {}
    for document in page.read_steps():
        (model,) = document["models"]
        us = {(row["batch"], row["arm"]): row["step_us"]["median"] for row in document["rows"]}
        gains[model] = [us[batch, "all-front-apart"] / us[batch, "all"] for batch in sorted({at for at, _ in us})]
        assert document["wrong"] == document["lost"] == []
    said = (ROOT / "docs" / "patches.md").read_text()
    (paragraph,) = [part for part in said.split("\n\n") if part.startswith("`token-embeddings`")]
    assert re.findall(r"x\d\.\d{3}", paragraph) == [f"x{one:.3f}" for of in gains.values() for one in of]
    assert min(min(of) for of in gains.values()) > 1
