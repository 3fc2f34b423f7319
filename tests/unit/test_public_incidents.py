"""What `logs` says of public incidents does not get worse than it was judged; docs/logs.md says how good that is."""

import re
from pathlib import Path

import pytest

from score_incidents import BLIND, MOST, blind_table, incidents, leading, points, table

INCIDENTS = incidents()
LOGS_PAGE = (Path(__file__).parents[2] / "docs" / "logs.md").read_text(encoding="utf-8")


@pytest.mark.sampled(3)
@pytest.mark.parametrize("incident", INCIDENTS, ids=lambda incident: f"{incident['set']}-{incident['thread']}")
def test_what_leads_is_what_was_judged_right(incident):
    held = incident.get("shown", MOST if incident["word"] else bool(incident["rule"]))
    assert points(incident, leading(incident)) == held


def test_each_is_named_once_but_for_those_that_were_drawn_blind():
    named = [incident["thread"] for incident in INCIDENTS if incident["set"] not in BLIND]
    drawn = [incident["thread"] for incident in INCIDENTS if incident["set"] in BLIND]
    assert len(set(named)) == len(named)
    assert len(set(drawn)) == len(drawn)


@pytest.mark.slow
def test_the_page_has_the_scores():
    rows = re.findall(r"^\| \d+ \| \d+ \| \d+% \| \d+% \| \d+ \|$", LOGS_PAGE, re.MULTILINE)
    assert rows == table()
    rows = re.findall(r"^\| \d+ \| \d+ \| (?:\d+%|-) \| \d+ \| \d+% \|$", LOGS_PAGE, re.MULTILINE)
    assert rows == blind_table()
