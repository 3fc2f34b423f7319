"""An audit on a terminal: the verdict, the equation that fails with both sides, then page by page who and where."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from gemma4_dumps.audit_findings import Suspect, equations, lost, suspects
from gemma4_dumps.reader import Dump
from gemma4_dumps.wording import number_of
from gemma4_triage.cli.dump_table import plain_table
from gemma4_triage.cli.output import printable
from gemma4_triage.diagnose.next_steps import next_steps

if TYPE_CHECKING:
    from gemma4_repro.live_audit import LiveAudit


def print_audit(console: Console, dump: Dump, rows: int) -> None:
    """One dump of the leak audit, with at most `rows` pages."""
    manifest = dump.manifest
    title = Text(printable(manifest.verdict.replace("_", " ").upper()), style="bold red")
    title.append(f"  {printable(manifest.dump_id)}", style="bold")
    _line(console, title)
    found = suspects(dump)
    where = f"audit at {manifest.site}, step {manifest.step}, page size {manifest.page_size}"
    _line(console, Text(printable(f"{number_of(manifest.offence_count, 'page')}; {where}")))
    for equation in equations(dump):
        text = Text(printable(f"  {equation.pool:<9}{equation.text()}"), style="" if equation.holds else "bold red")
        _line(console, text)
    owners = lost(found)
    for one in owners[:rows]:
        _line(console, Text(printable(f"  {one.pool:<9}{one.text()}")))
    if len(owners) > rows:
        _line(console, Text(f"  {number_of(len(owners) - rows, 'more owner')}; --json has them", style="dim"))
    table = plain_table("page", "pool", "fault", "owner", "handed out by", "freed by", "peer", "last event")
    for suspect in found[:rows]:
        table.add_row(*(Text(printable(cell)) for cell in _cells(suspect)))
    console.print(table)
    if manifest.offence_count > min(rows, len(found)):
        _line(console, Text(f"{manifest.offence_count - min(rows, len(found))} more; --json has them", style="dim"))
    for step in next_steps(dump, on_screen="audit"):
        _line(console, Text(printable(f"  {step}"), style="dim"))


def print_live(console: Console, live: "LiveAudit", dumps: Sequence[Dump], rows: int) -> None:
    """A live audit: what was looked at, then what was found."""
    tally = live.tally
    for dump in dumps:
        print_audit(console, dump, rows)
    audits = ", ".join(f"{count} at {site}" for site, count in tally.audits.items())
    pages = ", ".join(f"{count} {pool}" for pool, count in tally.pages.items())
    _line(console, Text(printable(f"{number_of(sum(tally.audits.values()), 'audit')} ({audits}) of {pages} pages")))
    requests = number_of(live.requests, "request")
    _line(console, Text(f"{requests}, {number_of(tally.steps, 'step')}, {number_of(tally.events, 'event')} followed"))
    for text in tally.equations:
        _line(console, Text(printable(f"  {text}")))
    for check, count in tally.let_pass.items():
        _line(
            console, Text(printable(f"SGLang's {check} failed {number_of(count, 'time')} and did not stop the server"))
        )
    verdict = number_of(len(dumps), "finding") if dumps else "no leak: every page was in one place at every audit"
    _line(console, Text(verdict, style="bold red" if dumps else "bold green"))


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


def _line(console: Console, text: Text) -> None:
    console.print(text, soft_wrap=True)
