"""A report as Markdown: TRIAGE_REPORT.md. What dumps and logs say is escaped or stands in code."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from gemma4_dumps.wording import number_of
from gemma4_triage.report.diagnosis_document import MAY_NOT_BE_ALL
from gemma4_triage.report.model.pictures import Grid, Ledger
from gemma4_triage.report.model.records import Dump, Finding, Group, Incident, Log, Report, Run
from gemma4_triage.report.model.run_part import part_name
from gemma4_triage.report.model.text import code_spans
from gemma4_triage.threads import thread_url

NAME = "TRIAGE_REPORT.md"

_SPECIAL = re.compile(r"([\\`*\[\]<>|~&#])")
_STATES = {"out": "!", "other": "?", "null": "!", "missing": "!", "stale": "", "behind": "", "same": "="}


def render_markdown(report: Report) -> str:
    """Return one document. Equal reports give equal text."""
    parts = [
        f"# {_text(report.title)}",
        *(f"**{_text(item.problem)}**" for item in report.damaged),
        f"Of {', '.join(_code(source) for source in report.sources)}.",
        "## Verdict",
        f"**{_text(report.verdict.headline)}**",
        *(_text(sentence) for sentence in report.verdict.sentences),
        *(_run(report.run) if report.run else ()),
        *(part for incident in report.incidents for part in _incident(incident)),
        *(part for log in report.logs for part in _log(log)),
        *_environment(report.environment),
        *_commands(report),
        *_left_out(report),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _run(run: Run) -> Iterator[str]:
    if run.arms:
        name = part_name(run)
        yield f"## {name.capitalize()}s"
        rows = [
            (arm.id if at == 0 else "", check.expected, check.observed, check.status)
            for arm in run.arms
            for at, check in enumerate(arm.checks)
        ]
        yield _table((name, "expected", "observed", "status"), rows)
        yield _table(
            (name, "device model", "took", "ended", "numbers"),
            [
                (arm.id, arm.device_model, f"{arm.duration_s:.1f} s", arm.ending, _pairs(arm.numbers))
                for arm in run.arms
            ],
        )
        for arm in run.arms:
            if arm.log_tail:
                yield f"The log of {name} {_code(arm.id)} ends with"
                yield _block("\n".join(arm.log_tail))
    if run.cases:
        yield "## Cases"
        rows = []
        for case in run.cases:
            seen = ", ".join(f"{one.probe} {one.dumps}" for one in case.sightings if one.dumps)
            missed = ", ".join(f"{one.probe} MISSED" for one in case.sightings if one.expected and not one.dumps)
            what = "; ".join(text for text in (seen, missed) if text)
            rows.append((case.id, case.origin, what, case.cause, "ok" if case.good else "NOT as expected"))
        yield _table(("case", "from", "dumps by probe", "cause", "status"), rows)


def _incident(incident: Incident) -> Iterator[str]:
    label = f"{incident.label}: " if incident.label else ""
    yield f"## {_text(label + incident.title)}"
    if incident.expected:
        yield "This part of the run went as expected; what follows was meant to happen."
    if incident.open_end:
        yield _text(f"{MAY_NOT_BE_ALL[0].upper()}{MAY_NOT_BE_ALL[1:]}: {incident.open_end}.")
    yield from (part for finding in incident.findings for part in _finding(finding))
    if incident.events:
        rows = [(event.time_utc, event.source, event.text) for event in incident.events]
        yield _table(("time, UTC", "in", "what"), rows)
    yield "\n".join(f"- {_text(line)}" for line in incident.readings)
    if incident.dumps:
        yield _table(
            ("", "dump", "verdict", "where", "step"),
            [
                (str(dump.number), dump.id, dump.verdict, dump.place, "" if dump.step is None else str(dump.step))
                for dump in incident.dumps
            ],
        )
    for dump in incident.dumps:
        yield from _dump(dump)
    yield from _lines(incident.left_out)


def _finding(finding: Finding) -> Iterator[str]:
    yield f"### {finding.label}: {_text(finding.rule)}"
    yield _text(finding.cause)
    rows = [
        (f"dump {one.number}" if one.number else one.source, one.field, one.value, one.meaning)
        for one in finding.evidence
    ]
    yield _table(("in", "field", "value", "what it says"), rows)
    for title, lines in (("What to do", finding.advice), ("Ruled out if", finding.ruled_out_if)):
        if lines:
            yield f"{title}:\n\n" + "\n".join(f"- {_text(line)}" for line in lines)
    if finding.upstream:
        yield "Upstream: " + ", ".join(f"[{_text(one)}]({thread_url(one)})" for one in finding.upstream)
    yield from _lines(finding.left_out)


def _dump(dump: Dump) -> Iterator[str]:
    if dump.grid is None and dump.ledger is None:
        return
    step = "" if dump.step is None else f", step {dump.step}"
    yield f"### Dump {dump.number}: {_text(dump.verdict.replace('_', ' '))}{step}"
    yield _text(dump.summary)
    if dump.sentence:
        yield _text(dump.sentence)
    if dump.grid is not None:
        yield from _grid(dump.grid)
    if dump.ledger is not None:
        yield from _ledger(dump.ledger)


def _grid(grid: Grid) -> Iterator[str]:
    bounds = f"{grid.lower} <= {grid.unit} < {grid.upper}"
    size = f"{number_of(grid.table_rows, 'row')} and {number_of(grid.table_columns, 'column')}"
    yield f"{_code(grid.table)} of {size}; inside the {_text(grid.buffer)}: {_text(bounds)}."
    yield "Entries that the probe listed stand in brackets."
    head = [f"{'row':>5} {'request':>7} {'keys':>6}  " + " ".join(f"{column:>6}" for column in grid.columns)]
    for row in grid.rows:
        facts = f"{row.row:>5} {_or_dash(row.request_slot):>7} {_or_dash(row.keys):>6}  "
        cells = []
        for cell in row.cells:
            value = f"{_or_dash(cell.value)}{_STATES.get(cell.state, '')}"
            cells.append(f"{f'[{value}]' if cell.offends else value:>6}")
        head.append(facts + " ".join(cells))
    yield _block("\n".join(head))
    marks = (f"{_STATES[one.state]} {one.text}" for one in grid.legend if _STATES.get(one.state))
    yield _text("; ".join(marks))
    yield from (_text(note) for note in grid.notes)
    yield from _lines(grid.left_out)


def _ledger(ledger: Ledger) -> Iterator[str]:
    yield "\n".join(f"- {_text(pool.pool)}: {_text(pool.text)}" for pool in ledger.pools)
    yield _table(("owner", "pages"), [(part.name, str(part.count)) for part in ledger.by_owner])
    yield _table(
        ("page", "pool", "fault", "owner", "handed out by", "freed by", "last event"),
        [
            (str(one.page), one.pool, one.fault, one.owner, one.handed_out, one.freed, one.last_event)
            for one in ledger.suspects
        ],
    )
    if ledger.lives:
        yield "Lives of these pages, oldest first:"
        yield "\n".join(f"- {_text(line)}" for line in ledger.lives)
    yield from _lines(ledger.left_out)


def _log(log: Log) -> Iterator[str]:
    yield f"## {'Log of arm ' + _text(log.label) if log.label else 'Log ' + _code(log.name)}"
    if log.relation:
        yield _text(log.relation)
    for scheduler in log.schedulers:
        rows = [(pair.name, pair.value) for pair in scheduler.facts]
        rows += [(one.name, one.summary) for chart in scheduler.charts for one in chart.series]
        yield _table((scheduler.rank or "what", ""), rows)
    yield from (part for finding in log.findings for part in _finding(finding))
    yield from _lines(log.left_out)


def _environment(groups: Sequence[Group]) -> Iterator[str]:
    if groups:
        yield "## Environment"
    for group in groups:
        yield _table((group.title, ""), [(pair.name, pair.value) for pair in group.pairs])


def _commands(report: Report) -> Iterator[str]:
    if report.commands:
        yield "## Commands to repeat and to go on"
        yield _block("\n".join(f"{command.line}  # {command.what}" for command in report.commands))


def _left_out(report: Report) -> Iterator[str]:
    lines = [f"not read: {item.path}: {item.problem}" for item in report.unreadable] + list(report.left_out)
    if lines:
        yield "## Not in this report"
        yield "\n".join(f"- {_text(line)}" for line in lines)


def _lines(left_out: Iterable[str]) -> Iterator[str]:
    yield from (f"Left out: {_text(line)}." for line in left_out)


def _pairs(pairs) -> str:
    return ", ".join(f"{pair.name} {pair.value}" for pair in pairs)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(map(_text, head)) + " |", "|" + "---|" * len(head)]
    lines += ["| " + " | ".join(map(_text, row)) + " |" for row in rows]
    return "\n".join(lines)


def _text(text: str) -> str:
    """Return one line in which nothing is markup but `code`."""
    line = " ".join(text.split())
    # A pipe would end a cell of a table, in code too.
    spans = [(False, line)] if "|" in line else code_spans(line)
    return "".join(_code(piece) if code else _SPECIAL.sub(r"\\\1", piece) for code, piece in spans)


def _code(text: str) -> str:
    """Return one line of code. A backtick in it would end it."""
    return f"`{' '.join(text.replace('`', chr(39)).split())}`"


def _block(text: str) -> str:
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}text\n{text}\n{fence}"


def _or_dash(value: int | None) -> str:
    return "-" if value is None else str(value)
