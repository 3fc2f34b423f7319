"""Every rule against every dump that the corpus yields: the right cause comes first, and no rule speaks out of turn.

The dumps are of a real run; `tests/tools/trim_corpus_dumps.py` made them.
"""

from functools import cache
from pathlib import Path

import pytest

from diagnose_examples import evidence_text, stands_there
from gemma4_dumps.store import DumpStore
from gemma4_dumps.verify import verify_dump
from gemma4_repro.corpus.clean import CLEAN
from gemma4_repro.corpus.faults import FAULTS
from gemma4_triage.diagnose.catalog import RULES
from gemma4_triage.diagnose.conclude import conclude
from gemma4_triage.diagnose.grouping import group
from gemma4_triage.diagnose.incident import Incident
from gemma4_triage.diagnose.material import read_store
from gemma4_triage.diagnose.rules import injected_fault
from gemma4_triage.finding import Confidence
from golden_files import compare
from known_causes import CAUSES

ROOT = Path(__file__).parents[1] / "data" / "corpus_dumps"

# An index that leads past a pool's end is that whatever led there; the finding that says why drops it.
ALSO = {("one-untranslated-row", "page-past-pool-end"), ("draft-pool-too-small", "page-past-pool-end")}


@cache
def incident_of(case: str) -> Incident:
    material = read_store(DumpStore(ROOT / case), None)
    assert material.unreadable == ()
    (incident,) = group(material.dumps, material.guards, material.ledgers)
    return incident


def test_the_fixtures_are_the_corpus():
    assert set(CAUSES) == {case.id for case in FAULTS}
    assert {path.name for path in ROOT.iterdir()} == {case.id for case in (*FAULTS, *CLEAN)}


def test_the_fixtures_are_whole_and_name_no_path_of_a_home():
    for manifest in ROOT.rglob("manifest.json"):
        assert verify_dump(manifest.parent).ok
    for file in ROOT.rglob("*.json"):
        assert not {"/root", "/home", "/tmp"} & {f"/{part}" for part in file.read_text().split("/")}


@pytest.mark.parametrize("case", CAUSES)
def test_the_first_finding_is_the_cause_and_the_only_one(case):
    findings = conclude(incident_of(case))
    assert [finding.rule for finding in findings] == [CAUSES[case]]


@pytest.mark.parametrize("case", CLEAN, ids=lambda case: case.id)
def test_a_clean_run_has_no_finding(case):
    incident = incident_of(case.id)
    assert incident.guards
    assert incident.ledgers
    assert conclude(incident) == ()


@pytest.mark.parametrize("rule", [rule for rule in RULES if not rule.fallback], ids=lambda rule: rule.id)
def test_a_rule_speaks_where_its_cause_is_and_nowhere_else(rule):
    spoke = {case for case in (*CAUSES, *(case.id for case in CLEAN)) if rule.speak(incident_of(case)) is not None}
    expected = {case for case, cause in CAUSES.items() if cause == rule.id}
    if rule.id == injected_fault.ID:
        expected = {case.id for case in FAULTS if case.inject}
    assert spoke == expected | {case for case, other in ALSO if other == rule.id}


def test_what_each_cause_is_proved_by():
    """Fields and values are held, in their order: a piece that is gone, or of another place, is seen here."""
    found = ((case, conclude(incident_of(case))) for case in sorted(CAUSES))
    compare("evidence_of_the_corpus.txt", evidence_text(found))


@pytest.mark.parametrize("case", CAUSES)
def test_every_piece_of_evidence_stands_in_the_dump(case):
    for finding in conclude(incident_of(case)):
        assert len(finding.evidence) >= 3
        wrong = [piece for piece in finding.evidence if not stands_there(piece, ROOT / case)]
        assert wrong == []


@pytest.mark.parametrize("case", FAULTS, ids=lambda case: case.id)
def test_an_injected_fault_is_called_one(case):
    (finding,) = conclude(incident_of(case.id))
    named = [piece.value for piece in finding.evidence if ".settings.faults." in piece.field]
    assert named == list(case.inject)
    assert ("injected on request" in finding.cause) is bool(case.inject)


@pytest.mark.parametrize("case", FAULTS, ids=lambda case: case.id)
def test_the_upstream_issue_is_the_corpus_own(case):
    (finding,) = conclude(incident_of(case.id))
    assert case.origin.reference in finding.upstream


@pytest.mark.parametrize("case", FAULTS, ids=lambda case: case.id)
def test_a_fix_that_the_case_leaves_off_is_the_one_that_is_named(case):
    (finding,) = conclude(incident_of(case.id))
    assert finding.fix == (case.without[0] if case.without else None)


LIKELY = {"page-past-the-end", "negative-page", "free-of-page-zero"}
# Its request has ended: what that counted as evicted no dump has.
POSSIBLE = {"page-over-count"}


@pytest.mark.parametrize("case", CAUSES)
def test_certain_only_where_the_values_leave_no_other_cause(case):
    (finding,) = conclude(incident_of(case))
    unsure = Confidence.POSSIBLE if case in POSSIBLE else Confidence.LIKELY
    assert finding.confidence is (unsure if case in LIKELY | POSSIBLE else Confidence.CERTAIN)


@pytest.mark.parametrize("case", CAUSES)
def test_each_dump_alone_has_a_cause_of_its_own_or_the_same(case):
    # Whoever sends one dump of many gets the cause that this dump shows, never the fallback for what nobody knows.
    for dump in incident_of(case).dumps:
        (alone,) = group((dump,))
        first = conclude(alone)[0]
        assert first.rule == CAUSES[case] or (case, dump.manifest.verdict) == ("swa-alloc-oob", "write_out_of_range")
