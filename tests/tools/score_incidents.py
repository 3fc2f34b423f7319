"""Scores `logs` on logs of public incidents: two points for the cause or the right next step, one for the class.

Usage: python tests/tools/score_incidents.py [--show].

The logs are minimal examples, written by us after the threads that tests/data/public_incidents.json names, in sets,
each of threads that nobody had looked at before, but for those of BLIND. `first` is what a set scored as it was read
for the first time, before anything was changed for it: that says what to expect of an incident that is new. `now` is
held by tests/unit/test_public_incidents.py: a point if the finding that leads is of the rule that was judged right, two
if it also has the word of the right step. A `word` of null was not reached yet. Of a log that ought to have no finding,
since only its answers are wrong or slow, `suspect` is what is to be tried, `shown` how many points its place among them
is.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gemma4_triage.finding import Finding
from gemma4_triage.known_issues.catalog import known_issues
from gemma4_triage.logs.catalog import findings
from gemma4_triage.logs.read import read_log
from gemma4_triage.logs.suspects import suspects

INCIDENTS = Path(__file__).parents[1] / "data" / "public_incidents.json"
MOST = 2
BLIND = tuple(range(41, 68))
"""Sets that somebody drew who did not know the tool, and somebody else judged; of 59 to 62, 65 and 66 it was the same
one."""


def incidents() -> list[dict[str, Any]]:
    """Return every incident: set, thread, cause, next, first, rule, word, log."""
    return json.loads(INCIDENTS.read_text(encoding="utf-8"))


def leading(incident: Mapping[str, Any]) -> Finding | None:
    """Return the finding that leads for an incident's log; None if there is none."""
    return next(iter(findings(read_log(incident["thread"], [incident["log"].encode()]))), None)


def points(incident: Mapping[str, Any], finding: Finding | None) -> int:
    """Return the points of the finding that leads, or of a suspect of a log that has none."""
    if (finding is None or finding.rule == "noted-trouble") and incident.get("suspect"):
        return _of_suspect(incident)
    if finding is None or finding.rule != incident["rule"]:
        return 0
    word = incident["word"]
    return MOST if word and word in " ".join((finding.cause, *finding.advice)) else 1


def _of_suspect(incident: Mapping[str, Any]) -> int:
    """Return two points if the suspect is the first of its kind, one if it is shown behind others."""
    shown = suspects(read_log(incident["thread"], [incident["log"].encode()]))
    right = next((one for one in shown if one.id == incident["suspect"]), None)
    if right is None:
        return 0
    return MOST if right is next(one for one in shown if one.of == right.of) else 1


def table() -> list[str]:
    """Return a row of Markdown for each set."""
    judged = [(incident, leading(incident)) for incident in incidents()]
    rows = []
    for number in sorted({incident["set"] for incident, _ in judged}):
        of_set = [(incident, finding) for incident, finding in judged if incident["set"] == number]
        most = MOST * len(of_set)
        first = sum(incident["first"] for incident, _ in of_set)
        now = sum(points(incident, finding) for incident, finding in of_set)
        silent = sum(finding is None for _, finding in of_set)
        rows.append(f"| {number} | {len(of_set)} | {first / most:.0%} | {now / most:.0%} | {silent} |")
    return rows


def blind_table() -> list[str]:
    """Return a row of Markdown for each of BLIND: how its threads fared that had been met before, and the others."""
    met = {f"sgl-project/sglang {thread}" for issue in known_issues() for thread in issue.threads}
    met |= {incident["thread"] for incident in incidents() if incident["set"] < min(BLIND)}
    rows = []
    for number in BLIND:
        of_set = [incident for incident in incidents() if incident["set"] == number]
        parts = [[one["first"] for one in of_set if (one["thread"] in met) is known] for known in (True, False)]
        shares = (f"{len(part)} | {f'{sum(part) / (MOST * len(part)):.0%}' if part else '-'}" for part in parts)
        rows.append(f"| {number} | {' | '.join(shares)} |")
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--show", action="store_true", help="list what has less than two points now")
    arguments = parser.parse_args()
    print("| set | incidents | at first sight | now | without a finding |\n|---|---|---|---|---|")
    print("\n".join(table()))
    print("\n| set | met before | at first sight | not met | at first sight |\n|---|---|---|---|---|")
    print("\n".join(blind_table()))
    for incident in incidents() if arguments.show else ():
        finding = leading(incident)
        if points(incident, finding) < MOST:
            print(f"{incident['thread']}: {incident['cause']}: {finding.cause if finding else 'no finding'}")


if __name__ == "__main__":
    main()
