"""Logs as people paste them: whatever stands around the lines, a log says what it says without it."""

from pathlib import Path

import pytest

from clean_logs import CLEAN
from gemma4_triage.logs.catalog import findings
from gemma4_triage.logs.read import read_log
from log_wrappers import WRAPPERS

SAMPLES = {path.stem: path.read_text() for path in (Path(__file__).parents[1] / "data" / "logs").glob("*.log")}


def said(text: str) -> list:
    """Return what is told of a log, without where it stands."""
    facts = read_log("log", [text.encode()])
    return [
        [(finding.rule, finding.cause, finding.confidence) for finding in findings(facts)],
        [(death.type_name, death.message, death.frames, death.rank) for death in facts.deaths],
        [(rank.rank, rank.prefill_lines, rank.decode_lines, rank.retractions.events) for rank in facts.ranks],
        [(guard.rule, guard.dump) for guard in facts.guards],
        [leak.text for leak in facts.leaks],
    ]


@pytest.fixture(scope="module")
def bare() -> dict[str, list]:
    return {name: said(text) for name, text in SAMPLES.items()}


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_every_sample_says_the_same_behind_every_prefix(wrapper, bare):
    assert {name: said(WRAPPERS[wrapper](text)) for name, text in SAMPLES.items()} == bare


@pytest.mark.parametrize("name", CLEAN)
def test_a_clean_log_has_no_finding(name):
    facts = read_log(name, [CLEAN[name].encode()])
    assert facts.understood_lines
    assert findings(facts) == ()


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_a_clean_log_has_no_finding_behind_any_prefix(wrapper):
    found = {}
    for name, text in CLEAN.items():
        facts = read_log(name, [WRAPPERS[wrapper](text).encode()])
        if findings(facts) or not facts.understood_lines:
            found[name] = findings(facts)
    assert found == {}
