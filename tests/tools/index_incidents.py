"""Lists what `logs` compares failures with: of each public incident what it came to, and the signs of its log.

Usage: python tests/tools/index_incidents.py [--check].

The incidents are those of tests/data/public_incidents.json, and records of known issues whose thread is not among them,
with their own minimal logs. The list is written to triage/gemma4_triage/known_issues/incidents.json, an incident on
each line. One whose log has no sign of a failure is left out: nothing can be like it. --check exits 1 if the list is
not what it should be.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from gemma4_triage.known_issues.catalog import known_issues
from gemma4_triage.known_issues.record import KnownIssue
from gemma4_triage.logs.likeness import signs_of
from gemma4_triage.logs.read import read_log
from score_incidents import incidents

LIST = Path(__file__).parents[2] / "triage" / "gemma4_triage" / "known_issues" / "incidents.json"


def listed() -> str:
    """Return the list as its file has it."""
    lines, told = [], incidents()
    threads = {incident["thread"] for incident in told}
    told += [one for one in map(_of_record, known_issues()) if one["thread"] not in threads]
    for incident in told:
        signs, arguments = signs_of(read_log(incident["thread"], [incident["log"].encode()]))
        if signs:
            said = {name: incident[name] for name in ("thread", "cause", "next")}
            said |= {"signs": sorted(signs), "arguments": sorted(arguments)}
            lines.append(json.dumps(said, ensure_ascii=False))
    return "[\n" + ",\n".join(lines) + "\n]\n"


def _of_record(issue: KnownIssue) -> dict[str, str]:
    cause = issue.title[0].upper() + issue.title[1:]
    newer = f"take SGLang {issue.fixed or issue.gone_by} or later" if issue.fixed or issue.gone_by else ""
    said = issue.workaround[:1].lower() + issue.workaround[1:].rstrip(".") if issue.workaround else newer
    return {"thread": f"sgl-project/sglang {issue.threads[0]}", "cause": cause, "next": said, "log": issue.log}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    text = listed()
    if parser.parse_args().check:
        raise SystemExit(int(LIST.read_text(encoding="utf-8") != text))
    LIST.write_text(text, encoding="utf-8")
