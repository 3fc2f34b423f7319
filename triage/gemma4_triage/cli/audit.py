"""`gemma4-triage audit`: what a leak audit found, from its dumps, or live on this CPU."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gemma4_dumps.errors import ExitCode
from gemma4_triage.cli import completions
from gemma4_triage.cli.shared_options import AsJson
from gemma4_triage.cli.store_options import SEVERAL_DUMPS, Directory, open_store
from gemma4_triage.errors import ExpectationFailed, NothingChecked, UsageMistake
from gemma4_triage.terminal import emit_json, say, stdout_console

if TYPE_CHECKING:
    from gemma4_dumps.reader import Dump
    from gemma4_repro.live_audit import LiveAudit


def register(app: typer.Typer) -> None:
    """Add the `audit` verb to the application."""
    app.command("audit")(audit)


def audit(
    dumps: Annotated[
        list[str] | None,
        typer.Argument(metavar="[DUMP]...", help=SEVERAL_DUMPS, autocompletion=completions.complete_dump),
    ] = None,
    live: Annotated[
        bool, typer.Option("--live", help="Run a mixed load with MTP on the real engine on this CPU, and audit it.")
    ] = False,
    fault: Annotated[
        list[str] | None,
        typer.Option(
            "--fault",
            metavar="IDS",
            help="With --live: inject these faults.",
            autocompletion=completions.words(completions.patches("fault")),
        ),
    ] = None,
    requests: Annotated[
        int | None, typer.Option("--requests", min=1, max=256, help="With --live: how many; default 12.")
    ] = None,
    rows: Annotated[int, typer.Option(min=1, help="How many pages to show of each finding.")] = 12,
    directory: Directory = None,
    as_json: AsJson = False,
) -> None:
    """Show which pages leaked, whose they were, who handed them out, and the pool equation that fails.

    For example: gemma4-triage audit latest

    Exits 0 if a live audit was clean, 1 for a leak, 3 if no engine runs here, 4 if a dump cannot be read
    or is damaged, 5 if there was no audit to look at.
    """
    if live == bool(dumps):
        raise UsageMistake("audit takes dumps or --live, one of them", "gemma4-triage audit latest shows the newest")
    if not live and (fault or requests):
        raise UsageMistake("--fault and --requests are of a live audit", "add --live, or leave them out")
    code = _live(tuple(fault or ()), requests or 12, rows, as_json) if live else _dumps(dumps, directory, rows, as_json)
    raise typer.Exit(code)


def _dumps(names: list[str] | None, directory: Path | None, rows: int, as_json: bool) -> int:
    from gemma4_dumps.audit_findings import RULE
    from gemma4_dumps.reader import read_dump
    from gemma4_triage.cli.dump_view import print_damage
    from gemma4_triage.report.audit_document import dumps_document
    from gemma4_triage.report.audit_view import print_audit

    store = open_store(directory)
    read = [read_dump(store.resolve(name)) for name in names or ()]
    audits = [dump for dump in read if dump.manifest.rule == RULE]
    skipped = [dump for dump in read if dump not in audits]
    for dump in skipped:
        say(f"{dump.manifest.dump_id}: not an audit dump: rule {dump.manifest.rule}")
    if not audits:
        raise NothingChecked(
            f"not an audit dump: rule {skipped[0].manifest.rule}",
            "serve with GEMMA4_TRIAGE_LEAK=dump to get one; gemma4-triage dumps show reads the others",
        )
    if as_json:
        for dump in audits:
            print_damage(dump, as_json)
        emit_json("audit", dumps_document(audits, skipped))
    else:
        for dump in audits:
            print_damage(dump, as_json)
            print_audit(stdout_console(), dump, rows)
    return ExitCode.DUMP_UNREADABLE if any(dump.damage for dump in audits) else ExitCode.VIOLATION


def _live(faults: tuple[str, ...], requests: int, rows: int, as_json: bool) -> int:
    from gemma4_triage.report.audit_document import live_document
    from gemma4_triage.report.audit_view import print_live

    live = _run(faults, requests)
    dumps = _audit_dumps(live)
    if live.problem and not dumps:
        raise ExpectationFailed(live.problem, f"its log: {live.log}")
    if not sum(live.tally.audits.values()):
        raise NothingChecked(live.tally.cannot or "the engine ran without an audit", f"its log: {live.log}")
    if as_json:
        emit_json("audit-live", live_document(live, dumps))
    else:
        print_live(stdout_console(), live, dumps, rows)
    say(f"dumps, log and results: {live.folder}")
    return ExitCode.VIOLATION if dumps else ExitCode.OK


def _run(faults: tuple[str, ...], requests: int) -> "LiveAudit":
    from gemma4_repro.live_audit import live_scenario, run_live_audit
    from gemma4_triage.runs.progress import ScenarioProgress

    scenario = live_scenario(faults, requests)
    with ScenarioProgress(scenario, scenario.arms) as progress:
        return run_live_audit(scenario, requests, progress)


def _audit_dumps(live: "LiveAudit") -> "list[Dump]":
    """Oldest first."""
    from gemma4_dumps.audit_findings import RULE
    from gemma4_dumps.reader import read_dump
    from gemma4_dumps.store import DumpStore

    whole = [entry for entry in DumpStore(live.dumps).list() if entry.manifest is not None]
    return [read_dump(entry.path) for entry in reversed(whole) if entry.manifest and entry.manifest.rule == RULE]
