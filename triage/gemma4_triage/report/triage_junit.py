"""A report as JUnit XML, in the form that Jenkins, GitLab and GitHub actions read (testsuites/testsuite/testcase).

| of            | a suite is | a case is             | fails if                                        |
|---------------|------------|-----------------------|-------------------------------------------------|
| a scenario    | an arm     | an expectation        | it failed; `not checked` is skipped             |
| a comparison  | a side     | a prompt, among others| it failed; `not checked` is skipped             |
| the corpus    | the run    | a case                | it is not as expected                           |
| dumps         | an incident| a finding             | it is no note: a cause is why CI should stop    |
| a serving log | the log    | a finding             | it is no note                                   |
| what is torn  | `evidence` | a file, a dump        | as an error: it could not be read, or is damaged|

An incident or log without a finding is one case that passes, or is skipped if nothing says how it ended. Findings in
the dumps of a run are no cases: the run's expectations say whether they were meant, so a failure stands for exit code 1
and the other way round.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from xml.etree import ElementTree

from gemma4_triage.report.diagnosis_document import MAY_NOT_BE_ALL, NOTHING_WRONG
from gemma4_triage.report.model.records import Finding, Report, Run


@dataclass(frozen=True)
class _Case:
    """outcome: `failure`, `error`, `skipped` or "" for passed."""

    name: str
    outcome: str = ""
    message: str = ""
    text: str = ""
    time_s: float = 0.0


@dataclass(frozen=True)
class _Suite:
    name: str
    cases: list[_Case] = field(default_factory=list)
    time_s: float = 0.0


def render_junit(report: Report) -> str:
    """Return the whole document, with its XML declaration."""
    suites = list(_suites(report))
    root = ElementTree.Element("testsuites", {"name": "gemma4-triage report"})
    root.attrib |= _counts([case for suite in suites for case in suite.cases])
    root.set("time", f"{sum(suite.time_s for suite in suites):.3f}")
    for suite in suites:
        element = ElementTree.SubElement(root, "testsuite", {"name": suite.name, **_counts(suite.cases)})
        element.set("time", f"{suite.time_s:.3f}")
        for case in suite.cases:
            _add(element, suite.name, case)
    ElementTree.indent(root)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{ElementTree.tostring(root, encoding="unicode")}\n'


def _suites(report: Report) -> Iterator[_Suite]:
    if report.run is not None:
        yield from _run(report.run)
    else:
        for number, incident in enumerate(report.incidents, start=1):
            yield _of_findings(f"incident {number}: {incident.title}", incident.findings, incident.open_end)
    for log in report.logs:
        if not log.label:
            yield _of_findings(f"log {log.name}", log.findings)
    if lost := (*report.damaged, *report.unreadable):
        yield _Suite("evidence", [_Case(item.path, "error", item.problem) for item in lost])


def _run(run: Run) -> Iterator[_Suite]:
    for arm in run.arms:
        cases = []
        for check in arm.checks:
            outcome = {"failed": "failure", "not checked": "skipped"}.get(check.status, "")
            text = "\n".join(arm.log_tail) if outcome == "failure" else ""
            cases.append(_Case(check.expected, outcome, f"observed: {check.observed}" if outcome else "", text))
        yield _Suite(f"{run.name}.{arm.id}", cases, arm.duration_s)
    if run.cases:
        cases = []
        for case in run.cases:
            said = "; ".join(case.objections) or case.ending
            outcome = "" if case.good else "failure"
            cases.append(_Case(case.id, outcome, "" if case.good else said, time_s=case.duration_s))
        yield _Suite(run.name, cases, sum(case.duration_s for case in run.cases))


def _of_findings(name: str, findings: tuple[Finding, ...], open_end: str = "") -> _Suite:
    cases = [
        _Case(f"{one.rule} ({one.label})", "" if one.is_note else "failure", one.cause, _evidence(one))
        for one in findings
    ]
    cases += [_Case("how it ended", "skipped", f"{MAY_NOT_BE_ALL}: {open_end}")] if open_end else []
    return _Suite(name, cases or [_Case(NOTHING_WRONG)])


def _evidence(finding: Finding) -> str:
    lines = [f"{one.source} {one.field}: {one.value}  ({one.meaning})" for one in finding.evidence]
    return "\n".join([*lines, *(f"next: {line}" for line in finding.commands)])


def _add(suite: ElementTree.Element, classname: str, case: _Case) -> None:
    element = ElementTree.SubElement(suite, "testcase", classname=classname, name=case.name, time=f"{case.time_s:.3f}")
    if case.outcome:
        detail = ElementTree.SubElement(element, case.outcome, message=case.message)
        if case.outcome != "skipped":
            detail.set("type", case.outcome)
        detail.text = case.text or None
    elif case.text:
        ElementTree.SubElement(element, "system-out").text = f"{case.message}\n{case.text}"


def _counts(cases: list[_Case]) -> dict[str, str]:
    count = {what: sum(case.outcome == what for case in cases) for what in ("failure", "error", "skipped")}
    return {
        "tests": str(len(cases)),
        "failures": str(count["failure"]),
        "errors": str(count["error"]),
        "skipped": str(count["skipped"]),
    }
