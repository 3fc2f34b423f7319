"""docs/attention.md is made of the committed rows, and those are whole."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

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
    rows, steps, fronts, serving = page.read_documents()
    assert all(row["error"] < 1e-2 for row in rows["rows"])
    assert all(ours < theirs for _, theirs, ours in page.cells(rows["rows"]))
    for document in [*steps, *fronts, serving]:
        assert (document["wrong"], document["lost"] or None) == ([], None)
        if document is fronts[0]:
            # Its time was enough for one row, as the page says: nothing is judged of it.
            assert document["partial"] == "out of time after 1 of 4 batches of e2b"
            continue
        assert document["partial"] == ""
        assert {target["status"] for target in document["targets"]} == {"met"}
    for document in steps:
        us = {(row["batch"], row["arm"]): row["step_us"]["median"] for row in document["rows"]}
        assert all(us[batch, "all"] < us[batch, "all-sglang-attention"] for batch, _ in us)
    shown: set[tuple[str, int]] = set()
    for document in fronts:
        us = {(row["batch"], row["arm"]): row["step_us"]["median"] for row in document["rows"]}
        assert all(us[batch, "all"] < us[batch, "all-apart"] for batch, _ in us)
        (model,) = document["models"]
        said = [batch for batch in (1, 4, 8) if (batch, "all") in us and model != "26b" and (model, batch) not in shown]
        shown |= {(model, batch) for batch, _ in us}
        assert all(f"x{us[batch, 'all-apart'] / us[batch, 'all']:.3f}" in PATCHES for batch in said)
    tpot = {(row["shape"], row["arm"]): row["tpot_ms"]["median"] for row in serving["rows"]}
    assert all(tpot[shape, "attention"] < tpot[shape, "products"] for shape, _ in tpot)
