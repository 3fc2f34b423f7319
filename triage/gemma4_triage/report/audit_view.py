"""An audit on a terminal: the verdict, the equation that fails with both sides, then page by page who and where."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Console

from gemma4_dumps.audit_findings import Suspect, equations, lives, lost, says_more, suspects
from gemma4_dumps.reader import Dump
from gemma4_dumps.wording import number_of
from gemma4_triage.diagnose.next_steps import next_steps
from gemma4_triage.terminal import add_row, plain_table, print_line

if TYPE_CHECKING:
    from gemma4_repro.live_audit import LiveAudit


def print_audit(console: Console, dump: Dump, rows: int) -> None:
    """Print one dump of the leak audit, with at most `rows` pages."""
    manifest = dump.manifest
    verdict = manifest.verdict.replace("_", " ").upper()
    print_line(console, verdict, f"  {manifest.dump_id}", style="bold red")
    found = suspects(dump)
    where = f"audit at {manifest.site}, step {manifest.step}, page size {manifest.page_size}"
    print_line(console, f"{number_of(manifest.offence_count, 'page')}; {where}")
    for equation in equations(dump):
        style = "" if equation.holds else "bold red"
        print_line(console, f"  {equation.pool:<9}{equation.text()}", style=style)
    owners = lost(found)
    for one in owners[:rows]:
        print_line(console, f"  {one.pool:<9}{one.text()}")
    if len(owners) > rows:
        print_line(console, f"  {number_of(len(owners) - rows, 'more owner')}; --json has them", style="dim")
    table = plain_table("page", "pool", "fault", "owner", "handed out by", "freed by", "peer", "last event")
    for suspect in found[:rows]:
        add_row(table, *_cells(suspect))
    console.print(table)
    for (pool, page), found_lives in list(lives(dump).items())[:rows]:
        if says_more(found_lives):
            print_line(console, f"  {pool} page {page}, oldest first:")
            for life in found_lives:
                print_line(console, f"    {life.text()}")
    if manifest.offence_count > min(rows, len(found)):
        print_line(console, f"{manifest.offence_count - min(rows, len(found))} more; --json has them", style="dim")
    for step in next_steps(dump, on_screen="audit"):
        print_line(console, f"  {step}", style="dim")


def print_live(console: Console, live: "LiveAudit", dumps: Sequence[Dump], rows: int) -> None:
    """Print a live audit: what was looked at, then what was found."""
    tally = live.tally
    for dump in dumps:
        print_audit(console, dump, rows)
    audits = ", ".join(f"{count} at {site}" for site, count in tally.audits.items())
    pages = ", ".join(f"{count} {pool}" for pool, count in tally.pages.items())
    print_line(console, f"{number_of(sum(tally.audits.values()), 'audit')} ({audits}) of {pages} pages")
    requests = number_of(live.requests, "request")
    print_line(console, f"{requests}, {number_of(tally.steps, 'step')}, {number_of(tally.events, 'event')} followed")
    for text in tally.equations:
        print_line(console, f"  {text}")
    for check, count in tally.let_pass.items():
        print_line(console, f"SGLang's {check} failed {number_of(count, 'time')} and did not stop the server")
    verdict = number_of(len(dumps), "finding") if dumps else "no leak: every page was in one place at every audit"
    print_line(console, verdict, style="bold red" if dumps else "bold green")


def _cells(suspect: Suspect) -> tuple[str, ...]:
    owner = "unknown" if suspect.owner is None else f"slot {suspect.owner[0]}, generation {suspect.owner[1]}"
    return (
        str(suspect.page),
        suspect.pool,
        suspect.fault.replace("_", " "),
        owner,
        _at(suspect.alloc_site, suspect.alloc_step),
        _at(suspect.free_site, suspect.free_step),
        "" if suspect.peer is None else str(suspect.peer),
        suspect.last_event.replace("_", " "),
    )


def _at(site: str, step: int | None) -> str:
    return "-" if step is None else f"{site}, step {step}"
