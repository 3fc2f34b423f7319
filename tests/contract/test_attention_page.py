"""docs/attention.md is made of the committed rows, and those are whole."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from gemma4_kernels.decode_attention.spec import CLUSTER_REQUESTS

ROOT = Path(__file__).parents[2]
PATCHES = (ROOT / "docs" / "patches.md").read_text()


@pytest.fixture(scope="module")
def page() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_attention_page", ROOT / "docs" / "make_attention_page.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_the_rows(page):
    """If this fails, remake the page with `python docs/make_attention_page.py`."""
    assert (ROOT / "docs" / "attention.md").read_text() == page.markdown(*page.read_documents())


def test_the_rows_are_whole_and_ours_is_never_slower(page):
    rows, steps, fronts, many, serving, wide = page.read_documents()
    assert all(row["error"] < 1e-2 for row in rows["rows"])
    assert all(ours < theirs for _, theirs, ours in page.cells(rows["rows"]))
    for document in [*steps, *fronts, *many, *serving]:
        assert (document["wrong"], document["lost"] or None) == ([], None)
        # Two ran out of time ahead of their last batch, of which the page then has no row.
        assert document["partial"] in ("", "out of time after 2 of 3 batches of e4b")
        if document["partial"] == "":
            # Of the load's aims today's two arms show none: those are of the patches one by one.
            aims = set() if document is serving[-1] else {"met"}
            assert {target["status"] for target in document["targets"]} == aims
    for document in steps:
        us = {(row["batch"], row["arm"]): row["step_us"]["median"] for row in document["rows"]}
        assert all(us[batch, "all"] < us[batch, "all-sglang-attention"] for batch, _ in us)
    shown: set[tuple[str, int, int]] = set()
    for document in fronts:
        us = {(row["batch"], row["arm"]): row["step_us"]["median"] for row in document["rows"]}
        assert all(us[batch, "all"] < us[batch, "shipped"] for batch, _ in us)
        assert all(us[batch, "all"] < us[batch, "all-apart"] for batch, _ in us if batch <= CLUSTER_REQUESTS)
        (model,), context = document["models"], document["method"]["context_tokens"]
        new = {batch for batch, _ in us if (model, batch, context) not in shown}
        shown |= {(model, batch, context) for batch in new}
        said = new & {1, 4, 8} if model != "26b" and context == 768 else ()
        assert all(f"x{us[batch, 'all-apart'] / us[batch, 'all']:.3f}" in PATCHES for batch in said)
    times = {(row["layer"], row["requests"], row["slots"], row["arm"]): row for row in wide["rows"]}
    assert all(row["error"] < 1e-2 for row in times.values())
    for (*cell, arm), row in times.items():
        assert arm == "clusters" or times[*cell, "clusters"]["us"]["median"] < row["us"]["median"]
    for document in many:
        assert all(row["batch"] > CLUSTER_REQUESTS for row in document["rows"])
    of_each, today = ({(row["shape"], row["arm"]): row["tpot_ms"]["median"] for row in one["rows"]} for one in serving)
    assert all(of_each[shape, "attention"] < of_each[shape, "products"] for shape, _ in of_each)
    assert all(today[shape, "attention"] < of_each[shape, "attention"] for shape, _ in today)
