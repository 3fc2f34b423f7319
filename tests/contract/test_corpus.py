"""The corpus is complete: every record is listed, and every name that it uses exists."""

import json
import shlex
from pathlib import Path

import pytest

from gemma4_dumps.schema import VERDICTS, Manifest
from gemma4_repro.corpus.catalog import CASES, choose_cases
from gemma4_repro.corpus.clean import CLEAN
from gemma4_repro.corpus.faults import FAULTS, LOGIT_FAULTS
from gemma4_repro.corpus.matrix import NOT_OF_THE_CORPUS, PROBE_OF_RULE
from gemma4_repro.errors import UnknownName
from gemma4_runtime.catalog import CATALOG
from gemma4_runtime.patch import Kind
from gemma4_runtime.releases import BASE
from gemma4_runtime.selection import select
from gemma4_runtime.settings import read_settings
from gemma4_triage.runs.convert_corpus import case_list

PROBES = {patch.id for patch in CATALOG if patch.finds}
INJECTABLE = {patch.id for patch in CATALOG if patch.kind is Kind.FAULT}


def test_it_is_as_large_as_promised():
    assert len(FAULTS) >= 14
    assert len(CLEAN) >= 4
    assert len({case.id for case in (*CASES, *LOGIT_FAULTS)}) == len(CASES) + len(LOGIT_FAULTS)


@pytest.mark.parametrize("part", ["faults", "clean", "logit_faults"])
def test_the_committed_run_is_of_the_corpus_as_it_is(part):
    """If this fails: the two commands at the top of docs/make_corpus_matrix.py."""
    committed = json.loads((Path(__file__).parents[2] / "docs" / "corpus_matrix.json").read_text(encoding="utf-8"))
    listed = case_list(FAULTS, CLEAN, LOGIT_FAULTS, BASE).model_dump(mode="json")[part]
    assert [{name: row.get(name) for name in case} for row, case in zip(committed[part], listed, strict=True)] == listed
    assert committed["exit_code"] == 0


def test_every_fault_of_the_runtime_is_in_the_corpus():
    seen_by_probes = {fault for case in FAULTS for fault in case.inject}
    seen_in_logits = {fault for case in LOGIT_FAULTS for fault in case.inject}
    assert seen_by_probes | seen_in_logits == INJECTABLE
    assert not seen_by_probes & seen_in_logits


def test_every_probe_finds_something_in_the_corpus():
    assert {probe for case in FAULTS for probe in case.probes} == PROBES - NOT_OF_THE_CORPUS
    assert set(PROBE_OF_RULE.values()) == PROBES


@pytest.mark.parametrize("case", FAULTS, ids=lambda case: case.id)
class TestFaults:
    def test_it_names_what_exists(self, case):
        fixes = {patch.id for patch in CATALOG if patch.kind is Kind.FIX}
        assert set(case.without) <= fixes
        assert set(case.probes) <= PROBES
        for finding in (*case.findings, *case.earlier):
            assert PROBE_OF_RULE[finding.rule] == finding.probe
            assert finding.verdict in VERDICTS
            assert {name.split(".")[0] for name in finding.evidence} <= set(Manifest.model_fields)
        for rule, verdict in case.consequences:
            assert rule in PROBE_OF_RULE
            assert verdict in VERDICTS

    def test_it_comes_from_somewhere_public(self, case):
        project, _, number = case.origin.reference.rpartition(" ")
        assert project
        assert number.isdigit()
        assert case.origin.reported

    def test_the_runtime_accepts_its_settings(self, case, monkeypatch):
        for name, value in case.environment(guarded=True).items():
            monkeypatch.setenv(name, value)
        chosen = {patch.id for patch in select(read_settings())}
        assert set(case.inject) <= chosen
        assert not set(case.without) & chosen
        assert chosen >= PROBES


@pytest.mark.parametrize("case", LOGIT_FAULTS, ids=lambda case: case.id)
class TestLogitFaults:
    def test_its_command_runs_the_gate_with_it(self, case):
        words = shlex.split(case.command)
        assert words[:3] == ["gemma4-triage", "diff", "patches"]
        assert [words[place + 1] for place, word in enumerate(words) if word == "--fault"] == list(case.inject)

    def test_it_takes_the_place_of_what_does_the_same_without_it(self, case):
        fault = next(patch for patch in CATALOG if patch.id in case.inject)
        assert fault.instead_of == case.unlike
        assert set(case.unlike) <= {patch.id for patch in CATALOG if patch.default}

    def test_a_live_test_shows_that_the_gate_catches_it(self, case):
        """It is held to all of these faults, so one more is run too."""
        live = Path(__file__).parents[1] / "engine" / "test_logit_faults_live.py"
        assert "params=LOGIT_FAULTS" in live.read_text(encoding="utf-8")

    def test_asked_of_the_probes_it_says_what_catches_it(self, case):
        with pytest.raises(UnknownName) as unknown:
            choose_cases((case.id,))
        assert case.command in unknown.value.hint


@pytest.mark.parametrize("case", CLEAN, ids=lambda case: case.id)
def test_a_clean_case_attaches_every_probe_and_no_fault(case, monkeypatch):
    for name, value in case.environment(guarded=True).items():
        monkeypatch.setenv(name, value)
    chosen = {patch.id for patch in select(read_settings())}
    assert chosen >= PROBES
    assert not chosen & INJECTABLE


def test_cases_are_chosen_by_id_in_the_catalogs_order():
    assert choose_cases(()) == CASES
    assert [case.id for case in choose_cases(("swa-alloc-oob", "swa-state-stale"))] == [
        "swa-state-stale",
        "swa-alloc-oob",
    ]
    with pytest.raises(UnknownName) as unknown:
        choose_cases(("swa-state-stal",))
    assert unknown.value.hint.startswith("near it: swa-state-stale; ")
