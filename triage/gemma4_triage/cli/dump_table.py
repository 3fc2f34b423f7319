"""Tables of the `dumps` verbs on a terminal."""

import sys
from collections.abc import Iterable
from itertools import islice

from gemma4_dumps.directory_name import short_id
from gemma4_dumps.included import sensitive, words
from gemma4_dumps.listing import ListedDump
from gemma4_dumps.verify import VerifyReport
from gemma4_triage.inspection.provenance_sentence import place
from gemma4_triage.terminal import (
    add_row,
    clean_text,
    is_brief,
    plain_table,
    printable,
    size_text,
    stdout_console,
)

_COLUMNS = ("id", "dump", "verdict", "where", "size")
STATE_STYLES = {"torn": "red", "incompatible": "yellow", "writing": "cyan"}


MOST_IN_A_TABLE = 250
"""A table's columns are as wide as its widest cells, so it is printed when all are known. A line beyond costs a tenth
of a row, and so many are printed at a time."""


def print_listing(entries: Iterable[ListedDump]) -> tuple[int, int]:
    """Print `dumps list`, and return how many dumps that were and how many bytes they have.

    However many there are, no more than MOST_IN_A_TABLE are held at a time.
    """
    left = iter(entries)
    console, table = stdout_console(), plain_table(*_COLUMNS)
    table.columns[1].no_wrap = True
    full = not is_brief(console)
    rows = [(_words(entry, full), entry) for entry in islice(left, MOST_IN_A_TABLE)]
    for row, entry in rows:
        holds = entry.heading is not None and sensitive(entry.heading)
        style = "yellow" if holds else STATE_STYLES.get(entry.state, "")
        add_row(table, (row[0], "bold"), row[1], (row[2], style), *row[3:])
    console.print(table)
    widths = [max(len(row[column]) for row, _ in rows) for column in range(len(_COLUMNS))]
    count, size_bytes = len(rows), sum(entry.size_bytes for _, entry in rows)
    while some := list(islice(left, MOST_IN_A_TABLE)):
        lines = []
        for entry in some:
            cells = _words(entry, full)
            if not "".join(cells).isprintable():
                cells = tuple(map(printable, cells))
            lines.append("  ".join(map(str.ljust, cells, widths)).rstrip() + "\n")
        sys.stdout.write("".join(lines))
        count, size_bytes = count + len(some), size_bytes + sum(entry.size_bytes for entry in some)
    return count, size_bytes


def _words(entry: ListedDump, full: bool) -> tuple[str, str, str, str, str]:
    """Return a row; full: with the dump's whole name, not its time, with which the name begins."""
    name = entry.dump_id if full or entry.renamed else f"{entry.created_utc:%Y-%m-%d %H:%M:%S}"
    if entry.heading is None or entry.state != "complete":
        verdict, where = f"{entry.state}: {entry.problem or ''}", place(entry.heading) if entry.heading else ""
    else:
        held = sensitive(entry.heading)
        verdict = f"{entry.heading.verdict}, {entry.heading.action}" + (f"; holds {words(held)}" if held else "")
        where = place(entry.heading)
    return short_id(entry.dump_id), name, verdict, where, size_text(entry.size_bytes)


def print_verification(report: VerifyReport) -> None:
    """`dumps verify`."""
    console = stdout_console()
    table = plain_table("checked", "", "found")
    for check in report.checks:
        add_row(table, check.subject, ("ok", "green") if check.ok else ("WRONG", "bold red"), check.detail)
    console.print(table)
    verdict = "whole" if report.ok else "damaged"
    console.print(clean_text(f"{report.path.name} is {verdict}", style="green" if report.ok else "bold red"))
