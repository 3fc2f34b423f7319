"""Render a report as one HTML page: what its sections show, in their order."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.resources import files

from gemma4_dumps.wording import number_of
from gemma4_triage.report.diagnosis_document import MAY_NOT_BE_ALL, NOTHING_WRONG
from gemma4_triage.report.html import figures
from gemma4_triage.report.html.markup import Html, joined, tag
from gemma4_triage.report.html.parts import (
    badge,
    cell,
    commands,
    finding,
    groups,
    head,
    left_out,
    listed,
    pairs,
    row_head,
    scrolled,
    words,
)
from gemma4_triage.report.model.records import Arm, Case, Dump, Group, Incident, Log, Report, Run
from gemma4_triage.report.model.run_part import part_name

POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
"""The page's Content-Security-Policy: should anything get past the escaping, it can neither run nor load."""


def render_html(report: Report) -> str:
    """Return one document. Equal reports give equal text."""
    # The page's own, and nothing that anybody else wrote.
    style = Html((files("gemma4_triage.report.html") / "style.css").read_text(encoding="utf-8"))
    sources = ([", ", tag("code", name)] if at else tag("code", name) for at, name in enumerate(report.sources))
    page = tag(
        "html",
        tag(
            "head",
            tag("meta", charset="utf-8"),
            tag("meta", http_equiv="Content-Security-Policy", content=POLICY),
            tag("meta", name_="viewport", content="width=device-width, initial-scale=1"),
            tag("meta", name_="color-scheme", content="light dark"),
            tag("meta", name_="referrer", content="no-referrer"),
            tag("title", report.title),
            tag("style", style),
        ),
        tag(
            "body",
            tag(
                "header",
                tag("p", "gemma4-triage report", class_="program"),
                tag("h1", report.title),
                tag("p", "of ", sources, class_="source"),
            ),
            tag("nav", _navigation(report), aria_label="Sections"),
            tag("main", _sections(report)),
        ),
        lang="en",
    )
    return f"<!DOCTYPE html>\n{page}"


def _navigation(report: Report) -> Iterator[Html]:
    yield tag("a", "Verdict", href="#verdict")
    if report.run:
        yield tag("a", _parts_name(report.run), href="#run")
    if report.incidents:
        yield tag("a", "Dumps" if report.run else "Incidents", href="#incidents")
    if report.logs:
        yield tag("a", "Over time", href="#logs")
    if report.environment:
        yield tag("a", "Environment", href="#environment")
    if report.commands:
        yield tag("a", "Commands", href="#commands")


def _section(name: str, title: str, *children: Html | Iterator[Html] | None, class_: str | None = None) -> Html:
    return tag("section", tag("h2", title), *children, id=name, class_=class_)


def _sections(report: Report) -> Iterator[Html]:
    yield joined(tag("p", words(item.problem), class_="damaged") for item in report.damaged)
    verdict = report.verdict
    told = (tag("p", words(sentence)) for sentence in verdict.sentences)
    headline = tag("p", verdict.headline, class_="headline")
    yield _section("verdict", "Verdict", headline, told, class_=f"verdict {verdict.status}")
    if report.run:
        yield _section("run", _parts_name(report.run), _run(report.run, report))
    if report.incidents:
        title = "From the dumps" if report.run else "Incidents"
        yield _section("incidents", title, (_incident(one, report) for one in report.incidents))
    if report.logs:
        yield _section("logs", "Over time, from the logs", map(_log, report.logs))
    if report.environment:
        yield _section("environment", "Environment", groups(report.environment))
    if report.commands:
        yield _section("commands", "Commands to repeat and to go on", commands(report.commands))
    if report.unreadable or report.left_out:
        lines = [
            *(tag("li", "not read: ", tag("code", item.path), f": {item.problem}") for item in report.unreadable),
            *(tag("li", line) for line in report.left_out),
        ]
        yield _section("left-out", "Not in this report", tag("ul", lines))


def _parts_name(run: Run) -> str:
    return f"{part_name(run)}s".capitalize()


def _run(run: Run, report: Report) -> Iterator[Html]:
    if run.arms:
        names = head((part_name(run), "expected", "observed", "status"))
        yield scrolled(_parts_name(run), tag("table", names, map(_arm_rows, run.arms), class_="arms"))
    if run.cases:
        caption = tag("caption", "Dumps of each probe, by case. Bold: the probe that has to see it.")
        names = head(("case", "from", *run.probes, "cause", "step", "status"))
        rows = tag("tbody", map(_case_row, run.cases))
        yield scrolled("Detection matrix", tag("table", caption, names, rows, class_="matrix"))
    if report.timeline:
        yield figures.timeline(report.timeline)
    yield from map(_arm, run.arms)


def _arm_rows(arm: Arm) -> Html:
    told = [arm.device_model, f"{arm.duration_s:.1f} s", number_of(arm.dump_count, "dump") if arm.dump_count else ""]
    small = tag("span", arm.title, tag("br"), ", ".join(filter(None, told)), class_="small")
    name = tag("th", arm.id, small, scope="rowgroup", rowspan=len(arm.checks))
    rows = (
        tag(
            "tr",
            None if at else name,
            cell(check.expected),
            cell(check.observed),
            cell(badge(check.status, check.status)),
        )
        for at, check in enumerate(arm.checks)
    )
    return tag("tbody", rows)


def _case_row(case: Case) -> Html:
    seen = (
        cell(one.dumps or ("miss" if one.expected else ""), f"count{' wanted' if one.expected else ''}")
        for one in case.sightings
    )
    return tag(
        "tr",
        row_head(case.id, tag("span", case.title, class_="small")),
        cell(case.origin),
        seen,
        cell(case.cause),
        cell(case.steps, "count"),
        cell(badge("ok" if case.good else "failed", "ok" if case.good else "not as expected")),
    )


def _arm(arm: Arm) -> Html:
    tail = None
    if arm.log_tail:
        lines = "".join(f"{line}\n" for line in arm.log_tail)
        tail = joined(tag("p", "Its log ends with", class_="listed"), tag("pre", lines))
    return tag(
        "details",
        tag("summary", f"{arm.id}: settings and numbers"),
        tag("p", arm.ending),
        pairs(arm.environment),
        pairs(arm.numbers) if arm.numbers else None,
        tail,
        open=bool(arm.log_tail),
    )


def _incident(incident: Incident, report: Report) -> Html:
    title = f"{incident.label}: {incident.title}" if incident.label else incident.title
    nothing = None
    if all(one.is_note for one in incident.findings):
        badged = badge("not checked", MAY_NOT_BE_ALL) if incident.open_end else badge("ok", NOTHING_WRONG)
        ending = f" How it ended is not known: {incident.open_end}." if incident.open_end else ""
        nothing = tag("p", badged, " No rule found a cause in it.", ending)
    environment = incident.environment if incident.environment != report.environment else ()
    return tag(
        "article",
        tag("h3", title, [" ", badge("ok", "as expected")] if incident.expected else None),
        nothing,
        map(finding, incident.findings),
        _events(incident),
        figures.timeline(incident.timeline) if incident.timeline else None,
        map(_dump, incident.dumps),
        left_out(incident.left_out),
        listed("Other files", incident.readings),
        (tag("p", f"Noted at start-up: {note}", class_="small") for note in incident.notes),
        _environment(environment) if environment else None,
        class_="incident",
    )


def _events(incident: Incident) -> Html | None:
    if not incident.events:
        return None
    rows = (
        tag("tr", cell(event.time_utc, "fact"), cell(event.source, "where"), cell(event.text))
        for event in incident.events
    )
    table = tag("table", head(("time, UTC", "in", "what")), tag("tbody", rows))
    return joined(tag("h4", "What happened when"), scrolled("What happened when", table))


def _environment(found: tuple[Group, ...]) -> Html:
    parts = ([tag("p", group.title, class_="listed"), pairs(group.pairs)] for group in found)
    return tag("details", tag("summary", "Environment of this incident"), parts)


def _dump(dump: Dump) -> Html:
    title = [f"Dump {dump.number}: {dump.verdict.replace('_', ' ')}", dump.place]
    title += [] if dump.step is None else [f"step {dump.step}"]
    whose = f", {dump.action}, {dump.created_utc}, rank {dump.rank}, pid {dump.pid}"
    return tag(
        "details",
        tag("summary", ", ".join(filter(None, title))),
        tag("p", dump.summary),
        tag("p", dump.sentence) if dump.sentence else None,
        tag(
            "p",
            tag("code", dump.path),
            tag("br"),
            f"{dump.rule} at ",
            tag("code", dump.site),
            whose,
            class_="small",
        ),
        figures.grid(dump.grid, dump.number) if dump.grid else None,
        figures.ledger(dump.ledger) if dump.ledger else None,
        _entries(dump),
        pairs(dump.facts) if dump.facts else None,
        left_out(dump.problems),
        class_="dump",
        open=bool(dump.grid or dump.ledger),
    )


def _entries(dump: Dump) -> Html | None:
    if not dump.entries:
        return None
    rows = (
        tag(
            "tr",
            cell(tag("code", one.table)),
            (cell(value, "count") for value in (one.row, one.column, one.request_slot)),
            cell(one.value, "count wanted"),
            cell(f"{one.lower} ≤ value < {one.upper}"),
        )
        for one in dump.entries
    )
    caption = tag("caption", f"Entries that the probe listed ({len(dump.entries)} of {dump.offence_count})")
    names = head(("table", "row", "column", "request", "value", "allowed"))
    return scrolled(f"Listed entries of dump {dump.number}", tag("table", caption, names, tag("tbody", rows)))


def _log(log: Log) -> Html:
    schedulers = (
        (
            tag("h4", one.rank) if one.rank else None,
            tag("div", map(figures.chart, one.charts), class_="charts") if one.charts else None,
            pairs(one.facts),
        )
        for one in log.schedulers
    )
    return tag(
        "article",
        tag("h3", f"arm {log.label}" if log.label else tag("code", log.name)),
        tag("p", log.relation, class_="relation") if log.relation else None,
        schedulers,
        map(finding, log.findings),
        tag("details", tag("summary", "About the log"), pairs(log.facts)),
        left_out(log.left_out),
        class_="log",
    )
