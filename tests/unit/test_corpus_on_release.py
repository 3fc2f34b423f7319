"""Which cases of the corpus a release of SGLang can have, and that each case's settings are accepted there."""

import json
from pathlib import Path

import pytest

from gemma4_repro.corpus.case import FaultCase
from gemma4_repro.corpus.catalog import CASES, absent_cases, choose_cases
from gemma4_repro.corpus.faults import LOGIT_FAULTS
from gemma4_repro.corpus.matrix import NOT_OF_THE_CORPUS
from gemma4_repro.errors import UnknownName
from gemma4_runtime.catalog import CATALOG
from gemma4_runtime.releases import BASE, RUNNABLE, installed_or_base
from gemma4_runtime.selection import select
from gemma4_runtime.settings import read_settings
from gemma4_runtime.standing import refusal

pytestmark = pytest.mark.releases("0.5.13.post1", "0.5.23")
DOCS = Path(__file__).parents[2] / "docs"
HERE = installed_or_base()


def test_the_base_release_has_every_case_as_it_is():
    assert absent_cases(BASE) == {}
    assert choose_cases((), BASE) == CASES


@pytest.mark.parametrize("release", RUNNABLE[1:])
def test_what_a_later_release_cannot_have_is_named_with_a_reason(release):
    absent = absent_cases(release)
    there = {case.id for case in choose_cases((), release)}
    assert there.isdisjoint(absent)
    assert there | absent.keys() == {case.id for case in (*CASES, *LOGIT_FAULTS)}
    assert all(reason.strip() for reason in absent.values())
    with pytest.raises(UnknownName, match=f"SGLang {release} cannot have the case 'window-one-too-wide'.*0.5.14"):
        choose_cases(("window-one-too-wide",), release)


@pytest.mark.parametrize("case", choose_cases((), HERE), ids=lambda case: case.id)
def test_every_case_that_is_there_is_accepted_by_the_plugin(case, monkeypatch):
    for name, value in case.environment(guarded=True).items():
        monkeypatch.setenv(name, value)
    chosen = select(read_settings(), release=HERE)
    assert [refusal(patch, HERE) for patch in chosen if refusal(patch, HERE)] == []
    if isinstance(case, FaultCase):
        assert {*case.inject, *case.probes} <= {patch.id for patch in chosen}


@pytest.mark.parametrize("release", RUNNABLE)
def test_there_is_a_fault_for_every_probe(release):
    seen = {probe for case in choose_cases((), release) for probe in getattr(case, "probes", ())}
    assert seen == {patch.id for patch in CATALOG if patch.finds} - NOT_OF_THE_CORPUS


@pytest.mark.parametrize("release", RUNNABLE[1:])
def test_the_committed_run_of_a_release_has_its_cases_and_is_right(release):
    """If this fails: the two commands at the top of docs/make_corpus_matrix.py, in that release's environment."""
    committed = json.loads((DOCS / f"corpus_matrix_{release}.json").read_text(encoding="utf-8"))
    assert committed["sglang_version"] == release
    assert [row["id"] for row in (*committed["faults"], *committed["clean"])] == [
        case.id for case in choose_cases((), release)
    ]
    assert committed["absent"].keys() == absent_cases(release).keys()
    assert committed["exit_code"] == 0


@pytest.mark.parametrize("name", ["corpus_matrix.json", "corpus_matrix_0.5.23.json"])
def test_a_committed_run_is_one_run_in_which_no_case_came_near_its_time_limit(name):
    """A row that took longer than the run it is in was measured in another one."""
    committed = json.loads((DOCS / name).read_text(encoding="utf-8"))
    limits = {case.id: case.time_limit_s for case in CASES}
    took = {row["id"]: row["duration_s"] for row in (*committed["faults"], *committed["clean"])}
    assert {id for id, duration_s in took.items() if duration_s > committed["duration_s"]} == set()
    assert {id for id, duration_s in took.items() if duration_s > limits[id] / 2} == set()
