"""The corpus is complete: every record is listed, and every name that it uses exists."""

import importlib
import pkgutil

import pytest

from gemma4_dumps.schema import VERDICTS, Manifest
from gemma4_repro import corpus
from gemma4_repro.detection.catalog import CASES, CLEAN, FAULTS, choose_cases
from gemma4_repro.detection.rules import PROBE_OF_RULE
from gemma4_repro.errors import UnknownName
from gemma4_runtime.catalog import CATALOG
from gemma4_runtime.patch import Kind
from gemma4_runtime.selection import select
from gemma4_runtime.settings import read_settings

PROBES = {patch.id for patch in CATALOG if patch.finds}
INJECTABLE = {patch.id for patch in CATALOG if patch.kind is Kind.FAULT}


def test_every_file_is_listed_once():
    names = [module.name for module in pkgutil.iter_modules(corpus.__path__)]
    written = [importlib.import_module(f"{corpus.__name__}.{name}").CASE for name in names]
    assert sorted(case.id for case in written) == sorted(case.id for case in CASES)
    assert [case.id.replace("-", "_") for case in written] == names


def test_it_is_as_large_as_promised():
    assert len(FAULTS) >= 14
    assert len(CLEAN) >= 4
    assert len({case.id for case in CASES}) == len(CASES)


def test_every_fault_of_the_runtime_is_in_the_corpus():
    assert {fault for case in FAULTS for fault in case.inject} == INJECTABLE


def test_every_probe_finds_something_in_the_corpus():
    assert {probe for case in FAULTS for probe in case.probes} == PROBES == set(PROBE_OF_RULE.values())


@pytest.mark.parametrize("case", FAULTS, ids=lambda case: case.id)
class TestFaults:
    def test_it_names_what_exists(self, case):
        fixes = {patch.id for patch in CATALOG if patch.kind is Kind.FIX}
        assert set(case.without) <= fixes
        assert set(case.probes) <= PROBES
        for finding in case.findings:
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
        choose_cases(("seed-bug",))
    assert "swa-state-stale" in unknown.value.hint
