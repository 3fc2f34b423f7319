"""The order of findings."""

from gemma4_triage.finding import Confidence, Evidence, Finding, ranked


def _finding(rule: str, confidence: Confidence, evidence: int) -> Finding:
    value = Evidence(source="dump", field="verdict", value="out_of_range", meaning="")
    return Finding(rule=rule, cause=rule, confidence=confidence, evidence=(value,) * evidence)


def test_certainty_goes_before_evidence_and_evidence_before_order() -> None:
    given = [
        _finding("much-but-possible", Confidence.POSSIBLE, 9),
        _finding("first", Confidence.LIKELY, 1),
        _finding("second", Confidence.LIKELY, 1),
        _finding("more", Confidence.LIKELY, 2),
        _finding("certain", Confidence.CERTAIN, 1),
    ]
    assert [finding.rule for finding in ranked(given)] == ["certain", "more", "first", "second", "much-but-possible"]


def test_a_likely_finding_of_the_rule_that_leads_goes_before_those_as_likely() -> None:
    given = [
        _finding("record", Confidence.POSSIBLE, 1),
        _finding("kind", Confidence.LIKELY, 3),
        _finding("record", Confidence.LIKELY, 1),
        _finding("doubt", Confidence.POSSIBLE, 2),
        _finding("certain", Confidence.CERTAIN, 1),
    ]
    assert [finding.rule for finding in ranked(given, leads="record")] == [
        *("certain", "record", "kind", "doubt", "record"),
    ]
