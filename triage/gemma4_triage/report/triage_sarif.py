"""A report as SARIF 2.1.0 (OASIS), for code scanning: a result per finding, whose rule is that of `diagnose` or `logs`.

| confidence | level   |
|------------|---------|
| certain    | error   |
| likely     | warning |
| possible   | note    |
| (a note)   | note    |

In a run whose arm went as expected a finding was meant: it is `informational`, and so has no level. What a run expected
and did not see is a result of the rule `expectation`.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import quote

from gemma4_dumps.manifest_file import EVENTS_NAME, MANIFEST_NAME
from gemma4_dumps.tensor_file import TENSORS_NAME
from gemma4_triage.diagnose.catalog import RULES
from gemma4_triage.logs import catalog as logs
from gemma4_triage.logs.rules import known_issue, other_crash, refused_by_check, unexplained_line
from gemma4_triage.readers.catalog import TITLES
from gemma4_triage.report.model.records import Evidence, Finding, Incident, Log, Report, Run

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
FINGERPRINT = "gemma4Triage/v1"
EXPECTATION = "expectation"

_LEVELS = {"certain": "error", "likely": "warning", "possible": "note", "note": "note"}
_LINE = re.compile(r"line (\d{1,18})")
_EVENT = re.compile(r"events\.(\d{1,18})\.")
_ENTRY = re.compile(r"[A-Za-z_]\w*\[")


def render_sarif(report: Report) -> str:
    """Return one JSON document. Equal reports give equal text."""
    titles = rule_titles() | {EXPECTATION: "A reproduction was not as its scenario expects"}
    results = list(_results(report))
    used = [rule for rule in titles if any(result["ruleId"] == rule for result in results)]
    used += sorted({result["ruleId"] for result in results} - set(used))
    for result in results:
        result["ruleIndex"] = used.index(result["ruleId"])
    unread = [_warning(item.problem) for item in report.damaged]
    unread += [_warning(f"not read: {item.path}: {item.problem}") for item in report.unreadable]
    run = {
        "tool": {
            "driver": {
                "name": "gemma4-triage",
                "version": version("gemma4-triage"),
                "rules": [{"id": rule, "shortDescription": {"text": titles.get(rule, rule)}} for rule in used],
            }
        },
        "invocations": [{"executionSuccessful": True, "toolExecutionNotifications": unread}],
        "results": results,
        "columnKind": "unicodeCodePoints",
    }
    return json.dumps({"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}, indent=1, allow_nan=False) + "\n"


def _warning(text: str) -> dict[str, Any]:
    return {"level": "warning", "message": {"text": text}}


def _results(report: Report) -> Iterator[dict[str, Any]]:
    if report.run is not None:
        yield from _expectations(report.run, report.sources[0])
    for incident in report.incidents:
        yield from (_result(finding, incident) for finding in incident.findings)
    for log in report.logs:
        yield from (_result(finding, log) for finding in log.findings)


def _result(finding: Finding, of: Incident | Log) -> dict[str, Any]:
    meant = isinstance(of, Incident) and of.expected
    paths = {dump.id: dump.path for dump in of.dumps} if isinstance(of, Incident) else {}
    found = [location for piece in finding.evidence if (location := _location(piece, paths, of))]
    # A viewer shows the first one; equal places are one.
    places = list({json.dumps(place, sort_keys=True): place for place in found}.values())
    return {
        "ruleId": finding.rule,
        "kind": "informational" if meant else "fail",
        "level": "none" if meant else _LEVELS[finding.label],
        "message": {"text": " ".join((finding.cause, *finding.advice))},
        "locations": places[:1],
        "relatedLocations": [place | {"id": at} for at, place in enumerate(places[1:10], start=1)],
        "partialFingerprints": {FINGERPRINT: finding.fingerprint},
        "properties": {"confidence": finding.confidence, "kind": finding.kind, "commands": list(finding.commands)},
    }


def _location(piece: Evidence, paths: dict[str, str], of: Incident | Log) -> dict[str, Any] | None:
    """Say where a piece of evidence stands. None for the value of a whole log without a line."""
    region: dict[str, int] = {}
    if piece.source in paths:
        name, region = _in_dump(piece.field)
        path = f"{paths[piece.source]}/{name}"
    elif isinstance(of, Log) and (line := _LINE.fullmatch(piece.field)):
        path, region = piece.source, {"startLine": max(int(line[1]), 1)}
    else:
        path = piece.source
    place: dict[str, Any] = {"artifactLocation": {"uri": _uri(path)}}
    if region:
        place["region"] = region
    return {
        "physicalLocation": place,
        "logicalLocations": [{"fullyQualifiedName": piece.field}],
        "message": {"text": f"{piece.value}: {piece.meaning}"},
    }


def _in_dump(field: str) -> tuple[str, dict[str, int]]:
    """Return the file of a dump that a field stands in, and its line in events.jsonl."""
    if event := _EVENT.match(field):
        return EVENTS_NAME, {"startLine": int(event[1]) + 1}
    return (TENSORS_NAME if _ENTRY.match(field) else MANIFEST_NAME), {}


def _expectations(run: Run, folder: str) -> Iterator[dict[str, Any]]:
    for arm in run.arms:
        for check in arm.checks:
            if check.status == "failed":
                text = f"arm {arm.id}: expected {check.expected}, observed {check.observed}"
                yield _failed(text, f"{folder}/{arm.id}/log.txt", f"{run.name}/{arm.id}/{check.expected}")
    for case in run.cases:
        if not case.good:
            text = f"case {case.id}: {'; '.join(case.objections) or case.ending}"
            yield _failed(text, f"{folder}/{case.id}/log.txt", f"{run.name}/{case.id}")


def _failed(text: str, path: str, key: str) -> dict[str, Any]:
    return {
        "ruleId": EXPECTATION,
        "kind": "fail",
        "level": "error",
        "message": {"text": text},
        "locations": [{"physicalLocation": {"artifactLocation": {"uri": _uri(path)}}}],
        "partialFingerprints": {FINGERPRINT: hashlib.sha256(key.encode("utf-8")).hexdigest()[:32]},
    }


def _uri(path: str) -> str:
    """Relative paths stay relative, to the folder that the command ran in."""
    if os.path.isabs(path):
        return Path(path).as_uri()
    return quote(str(PurePosixPath(path)), safe="/")


def rule_titles() -> dict[str, str]:
    """Return titles by rule id. A rule of `diagnose` is named by the first line of its module's docstring."""
    diagnosed = {rule.id: (sys.modules[rule.find.__module__].__doc__ or rule.id) for rule in RULES}
    titles = {rule: text.strip().splitlines()[0] for rule, text in diagnosed.items()}
    titles |= {rule.ID: rule.TITLE for rule in (known_issue, other_crash, refused_by_check, unexplained_line)}
    titles |= TITLES
    return titles | {rule.id: rule.title for rule in (*logs.ENDINGS, *logs.FALLBACKS, *logs.LOADS)}
