"""docs/kernels.md and its picture are made of the committed rows, and those are judged as today's targets say."""

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest

from gemma4_triage.report.kernel_bench_plot import draw_kernels

ROOT = Path(__file__).parents[2]
SOURCES = json.loads((ROOT / "docs" / "kernel_sources.json").read_text())


def script(name) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def page() -> ModuleType:
    return script("make_kernel_page")


def test_the_page_is_the_rows(page):
    """If this fails, run: python docs/make_kernel_page.py."""
    assert (ROOT / "docs" / "kernels.md").read_text() == page.markdown(page.documents(), SOURCES)


def test_the_picture_is_drawn_from_the_rows(page):
    """If this fails, run: python docs/make_kernel_page.py."""
    assert (ROOT / "docs" / "kernels.svg").read_text() == draw_kernels(list(page.documents().values()))


def test_no_answer_was_wrong_and_every_launch_of_ours_is_one_per_layer(page):
    for document in page.documents().values():
        assert document["wrong"] == []
        for entry in (entry for entry in document["launches"] if entry["arm"] == "ours"):
            layers = document["models"][entry["model"]]["layers"]
            assert entry["launches_per_step"] == (1 if entry["op"] == "ple_front_end" else layers)


# The first release of docs/kernel_sources.json is the one whose sources it holds ours against.
@pytest.mark.releases("0.5.13.post1")
def test_the_installed_release_is_the_one_that_was_compared():
    if importlib.util.find_spec("sglang") is None:
        pytest.skip("SGLang is not installed")
    assert script("compare_kernel_sources").installed_sglang() == SOURCES["releases"][0]


def test_the_newer_release_ships_the_same_kernels():
    """If this fails, the newer release's kernel is a peer of its own, and needs an arm."""
    first, newer = (release for release in SOURCES["releases"] if release["package"] == "sglang")
    sums = [{name: at["sha256"] for name, at in release["functions"].items()} for release in (first, newer)]
    assert sums[0] == sums[1]
    assert len(sums[0]) == 6


@pytest.mark.parametrize("share", [0.84, 0.9])
def test_a_cell_says_what_it_misses(page, share):
    spread = {"median": 10.0, "q10": 9.0, "q90": 11.0}
    ours = {"us": spread, "copy_share": share, "empty_ratio": 5.0}
    rows = {"ours": ours} | {arm: {"us": spread} for arm in ("sglang", "compile", "eager")}
    missed = "missed: copy-bandwidth" if share < 0.85 else "met"
    assert page._judged("rmsnorm_add", 4096, rows) == missed
    del rows["compile"]
    assert page._judged("rmsnorm_add", 4096, rows).endswith("not measured: peers")
    assert page._judged("rmsnorm_add", 8, rows) == "missed: launch-bound; not measured: peers"
