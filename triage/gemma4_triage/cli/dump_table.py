"""Tables of the `dumps` verbs on a terminal."""

from collections.abc import Sequence

from gemma4_dumps.included import sensitive, words
from gemma4_dumps.listing import DumpEntry
from gemma4_dumps.verify import VerifyReport
from gemma4_triage.inspection.provenance_sentence import place
from gemma4_triage.terminal import add_row, clean_text, plain_table, size_text, stdout_console

STATE_STYLES = {"torn": "red", "incompatible": "yellow", "writing": "cyan"}


def print_listing(entries: Sequence[DumpEntry]) -> None:
    """`dumps list`."""
    console = stdout_console()
    table = plain_table("dump", "verdict", "where", "size")
    for entry in entries:
        if entry.manifest is None:
            verdict = clean_text(f"{entry.state}: {entry.problem or ''}", style=STATE_STYLES[entry.state])
            where = ""
        else:
            held = sensitive(entry.manifest)
            verdict = clean_text(
                f"{entry.manifest.verdict}, {entry.manifest.action}",
                (f"; holds {words(held)}" if held else "", "yellow"),
            )
            where = place(entry.manifest)
        table.add_row(clean_text(entry.dump_id), verdict, clean_text(where), size_text(entry.size_bytes))
    console.print(table)


def print_verification(report: VerifyReport) -> None:
    """`dumps verify`."""
    console = stdout_console()
    table = plain_table("checked", "", "found")
    for check in report.checks:
        add_row(table, check.subject, ("ok", "green") if check.ok else ("WRONG", "bold red"), check.detail)
    console.print(table)
    verdict = "whole" if report.ok else "damaged"
    console.print(clean_text(f"{report.path.name} is {verdict}", style="green" if report.ok else "bold red"))
