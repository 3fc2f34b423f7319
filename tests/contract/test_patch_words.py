"""What `patches explain` says of each patch is there, and is true as far as a test can tell."""

import re
from pathlib import Path

import pytest
import sglang

from gemma4_repro.corpus.faults import FAULTS
from gemma4_runtime.catalog import CATALOG
from gemma4_runtime.errors import SettingsError
from gemma4_runtime.patch import Kind
from gemma4_runtime.presets import PRESETS
from gemma4_runtime.releases import BASE, RUNNABLE
from gemma4_runtime.selection import select
from gemma4_runtime.settings import VARIABLES, Settings, read_settings
from gemma4_runtime.standing import State, releases_of, standing
from gemma4_runtime.targets import TARGETS, dotted_path
from gemma4_triage.inspection.explain_patch import about, links, source_file
from gemma4_triage.inspection.patch_state import state_here, switch_off, switch_on, variables_of

pytestmark = pytest.mark.releases("0.5.13.post1", "0.5.23")

ROOT = Path(__file__).resolve().parents[2]
SERVED = [patch for patch in CATALOG if patch.kind in (Kind.FIX, Kind.OPTIMISATION, Kind.PROBE)]
PLACES = ("tests/", "kernels/bench/rows/", "docs/")

every_patch = pytest.mark.parametrize("patch", CATALOG, ids=lambda patch: patch.id)
served_patch = pytest.mark.parametrize("patch", SERVED, ids=lambda patch: patch.id)


@served_patch
def test_it_says_why_where_and_what_else(patch):
    """A new fix, optimisation or probe brings `about=About(...)`; gemma4_runtime/patch.py says what goes in."""
    assert patch.about is not None
    for text in (patch.about.why, patch.about.eligibility, patch.about.fallback):
        assert text.endswith(".")
        assert len(text) > 30
        assert "  " not in text


@every_patch
def test_its_proof_is_in_the_repository(patch):
    proof = about(patch).proof
    assert len(set(proof)) == len(proof)
    assert any(entry.startswith("tests/") for entry in proof)
    for entry in proof:
        path, _, name = entry.partition("::")
        assert path.startswith(PLACES), entry
        assert (ROOT / path).is_file(), entry
        if name:
            wanted = rf"def {name}\(" if path.endswith(".py") else rf'"{name}"'
            assert re.search(wanted, (ROOT / path).read_text(encoding="utf-8")), entry


def test_a_fault_that_the_corpus_does_not_inject_has_words_of_its_own():
    injected = {fault for case in FAULTS for fault in case.inject}
    assert {patch.id for patch in CATALOG if patch.kind is Kind.FAULT and patch.about is None} == injected


@every_patch
def test_its_variables_are_settings(patch):
    named = set(re.findall(r"\b(?:GEMMA4_TRIAGE|SGLANG)_[A-Z0-9_]+", f"{about(patch)} {switch_off(patch)}"))
    assert named | set(variables_of(patch)) <= set(VARIABLES)


@every_patch
def test_the_setting_that_it_names_switches_it_on(patch, monkeypatch):
    if patch.asked_by == "cost":
        monkeypatch.setenv("SGLANG_TRTLLM_MHA_DEBUG", "log")
    for word in switch_on(patch).split():
        monkeypatch.setenv(*word.split("=", 1))
    settings = read_settings()
    assert patch in select(settings, release=patch.since)
    assert state_here(patch, settings, True, patch.since).startswith("on: ")


@pytest.mark.parametrize("patch", [patch for patch in CATALOG if patch.default], ids=lambda patch: patch.id)
def test_a_default_goes_off_alone(patch, monkeypatch):
    setting = switch_off(patch).split(", or ")[0]
    monkeypatch.setenv(*setting.split("=", 1))
    left = {one.id for one in select(read_settings())}
    assert left == {one.id for one in CATALOG if one.default} - {patch.id}


@every_patch
def test_links_are_of_files_that_the_release_has(patch):
    found = links(patch)
    assert found
    assert len(set(found)) == len(found)
    package = Path(sglang.__file__).parent.parent
    for release in {sglang.__version__} & set(releases_of(patch)):
        for attachment in patch.attachments_in(release):
            assert (package / source_file(dotted_path(release, attachment.target))).is_file()


def test_a_number_in_a_text_becomes_a_link():
    patch = next(patch for patch in CATALOG if patch.id == "leak-ledger")
    assert [link.rpartition("/")[2] for link in links(patch) if "/issues/" in link] == ["11970", "7130", "10871"]
    patch = next(patch for patch in CATALOG if patch.id == "negative-page")
    assert links(patch)[0] == "https://github.com/NVIDIA/TensorRT-LLM/issues/16280"
    patch = next(patch for patch in CATALOG if patch.id == "host-router-scale")
    assert [link.rpartition("/")[2] for link in links(patch) if "/issues/" in link] == ["23280", "32131"]


def test_every_release_of_a_patch_has_targets():
    assert {release for patch in CATALOG for release in releases_of(patch)} <= set(TARGETS)
    assert all(patch.since in TARGETS and patch.until in TARGETS for patch in CATALOG)


@pytest.mark.parametrize(
    ("id", "said"), [("eager-out-cache-loc", "which has it: "), ("yoco", "and 0.5.23 is installed: ")]
)
def test_what_does_not_attach_to_a_release_is_off_there_and_says_why(id, said, monkeypatch):
    (patch,) = [patch for patch in CATALOG if patch.id == id]
    monkeypatch.setenv("GEMMA4_TRIAGE_PATCHES", id)
    state = state_here(patch, read_settings(), True, "0.5.23")
    assert state.startswith("off: ")
    assert said in state


def test_the_page_of_patches_names_those_that_attach_to_the_newest_release():
    newest = RUNNABLE[-1]
    page = " ".join((ROOT / "docs" / "patches.md").read_text(encoding="utf-8").split())
    (said,) = re.findall(rf"On {newest} attach (.*?)\. ", page)
    attaching = [
        patch.id
        for patch in CATALOG
        if patch.kind in (Kind.FIX, Kind.OPTIMISATION) and standing(patch, newest).state is State.ATTACHES
    ]
    assert re.findall("`(.*?)`", said) == attaching


@pytest.mark.parametrize("preset", PRESETS, ids=lambda preset: preset.id)
@pytest.mark.parametrize("release", RUNNABLE)
def test_what_a_preset_advises_is_accepted_by_each_release_or_names_its_own(preset, release):
    for advised in re.findall(r"--patches ([a-z0-9,+-]+)", preset.why):
        settings = Settings.model_construct(patches=tuple(advised.split(",")))
        try:
            select(settings, release=release)
        except SettingsError:
            assert f"on {BASE} --patches {advised}" in preset.why
