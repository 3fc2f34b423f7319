"""Known issues on a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console

from gemma4_dumps.wording import number_of
from gemma4_triage.known_issues.record import KnownIssue
from gemma4_triage.logs.facts import LogFacts
from gemma4_triage.logs.rule import exception_text
from gemma4_triage.logs.rules.known_issue import Match
from gemma4_triage.report.known_matrix import MatrixRow
from gemma4_triage.terminal import add_row, is_brief, plain_table, print_line, say, with_last_cut


def print_list(console: Console, issues: Sequence[KnownIssue]) -> None:
    """Print one line of a table per record; a narrow terminal has topic and fix with -v only."""
    short = is_brief(console)
    heads = ["id", "thread", *([] if short else ["topic", "fixed"]), "what happens"]
    rows = [
        [issue.id, str(issue.threads[0]), *([] if short else [issue.topic, issue.fix or "not known"]), issue.title]
        for issue in issues
    ]
    table = plain_table(*heads)
    for row in with_last_cut(console, heads, rows):
        add_row(table, *row)
    console.print(table)
    say(f"{number_of(len(issues), 'issue')}: gemma4-triage known show ID says all of one, known list -v more of each")


def print_issue(console: Console, issue: KnownIssue) -> None:
    """Print all of one record but the logs that it must leave alone."""
    signature = issue.signature
    print_line(console, f"{issue.name}: {issue.title}", style="bold")
    print_line(console, f"  {issue.cause}")
    rows = (
        ("reported for", ", ".join(issue.reported)),
        ("since", issue.since or ""),
        ("fixed", issue.fix_told),
        ("workaround", issue.workaround),
        ("our patch", issue.patch or ""),
        ("exception", signature.exception),
        *(("words", words) for words in signature.words),
        *(("frame", frame) for frame in signature.frames),
        *(("argument", f"{name}: {value}") for name, value in signature.arguments.items()),
        ("pool counted", signature.counted),
        *(("thread", url) for url in issue.urls),
    )
    for name, value in rows:
        if value:
            print_line(console, f"  {name:<12}  {value}")
    print_line(console, "a log of it:", style="bold")
    for line in issue.log.splitlines():
        print_line(console, f"  {line}", style="dim")


def print_matches(console: Console, found: Sequence[tuple[LogFacts, str | None, list[Match]]]) -> None:
    """Print what each log matches, and what it would match in another release.

    Args:
        console: Where to.
        found: Of each log what was read, the release that it is judged by, and the records that fit.
    """
    for facts, release, matches in found:
        print_line(console, facts.name, style="bold")
        for match in matches:
            said = f"{match.issue.state(release)}: {match.issue.title}"
            if match.concerned is False:
                print_line(console, f"  it is not {said}")
                continue
            print_line(console, f"  {match.issue.confidence.upper()}  {said}", style="bold yellow")
            print_line(console, f"    line {match.death.place.line}: {exception_text(match.death)}")
            print_line(console, f"    gemma4-triage known show {match.issue.id}")
        if not matches:
            print_line(console, "  none of the known issues")


def print_check(console: Console, rows: Sequence[MatrixRow]) -> None:
    """Print what is wrong with the records, or that nothing is."""
    for row in rows:
        if not row.matches_own:
            print_line(console, f"{row.issue.id}: does not fit its own log", style="bold red")
        for number in row.fits_wrongly:
            print_line(console, f"{row.issue.id}: fits its other log {number}", style="bold red")
        for other in row.fits_others:
            print_line(console, f"{row.issue.id}: fits the log of {other}", style="bold red")
    good = sum(row.good for row in rows)
    print_line(console, f"{good} of {number_of(len(rows), 'record')} fit their own log and no other")
