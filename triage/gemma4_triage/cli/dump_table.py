"""Tables of the `dumps` verbs on a terminal."""

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from gemma4_dumps.included import sensitive, words
from gemma4_dumps.listing import DumpEntry
from gemma4_dumps.verify import VerifyReport
from gemma4_triage.cli.output import printable, size_text, stdout_console
from gemma4_triage.inspection.provenance_sentence import place

STATE_STYLES = {"torn": "red", "incompatible": "yellow", "writing": "cyan"}


def plain_table(*columns: str) -> Table:
    """A table without a frame. The first column is never cut: it is what one copies."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for position, column in enumerate(columns):
        table.add_column(column, no_wrap=position == 0, overflow="fold")
    return table


def print_listing(entries: Sequence[DumpEntry]) -> None:
    """`dumps list`."""
    console = stdout_console()
    table = plain_table("dump", "verdict", "where", "size")
    for entry in entries:
        if entry.manifest is None:
            verdict = Text(f"{entry.state}: {printable(entry.problem or '')}", style=STATE_STYLES[entry.state])
            where = ""
        else:
            verdict = Text(f"{printable(entry.manifest.verdict)}, {entry.manifest.action}")
            if held := sensitive(entry.manifest):
                verdict.append(printable(f"; holds {words(held)}"), style="yellow")
            where = printable(place(entry.manifest))
        table.add_row(Text(printable(entry.dump_id)), verdict, Text(where), size_text(entry.size_bytes))
    console.print(table)


def print_verification(report: VerifyReport) -> None:
    """`dumps verify`."""
    console = stdout_console()
    table = plain_table("checked", "", "found")
    for check in report.checks:
        mark = Text("ok", style="green") if check.ok else Text("WRONG", style="bold red")
        table.add_row(Text(printable(check.subject)), mark, Text(printable(check.detail)))
    console.print(table)
    verdict = "whole" if report.ok else "damaged"
    console.print(Text(f"{report.path.name} is {verdict}", style="green" if report.ok else "bold red"))
