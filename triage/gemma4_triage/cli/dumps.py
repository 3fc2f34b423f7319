"""`gemma4-triage dumps`: list, show, verify, prune."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gemma4_triage.cli.age import parse_age
from gemma4_triage.cli.output import emit_json, say, size_text
from gemma4_triage.errors import ExitCode, UsageMistake

if TYPE_CHECKING:
    from gemma4_dumps.store import DumpStore

DIRECTORY_VARIABLE = "SGLANG_TRTLLM_MHA_DEBUG_DIR"

Directory = Annotated[
    Path | None,
    typer.Option("--dir", help=f"Where the dumps are. Default: {DIRECTORY_VARIABLE}, else the user state directory."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")]
DumpName = Annotated[
    str, typer.Argument(metavar="DUMP", help='A name, the beginning of one, a path, or "latest".', show_default=False)
]


def register(app: typer.Typer) -> None:
    """Add the `dumps` verbs to the application."""
    verbs = typer.Typer(help="Look at the dumps that the guards wrote.", no_args_is_help=True)
    verbs.command("list")(list_dumps)
    verbs.command("show")(show_dump)
    verbs.command("verify")(verify)
    verbs.command("prune")(prune)
    app.add_typer(verbs, name="dumps")


def open_store(directory: Path | None) -> "DumpStore":
    """The store that --dir, the environment or the default names. Raises UsageMistake if --dir is not a directory."""
    from gemma4_dumps.store import DumpStore

    if directory is not None:
        if not os.path.isdir(directory):
            raise UsageMistake(f"{directory} is not a directory", "--dir takes the directory that holds the dumps")
        return DumpStore(directory)
    # Unset and empty mean the same to a shell user.
    return DumpStore(os.environ.get(DIRECTORY_VARIABLE) or None)


def list_dumps(directory: Directory = None, as_json: AsJson = False) -> None:
    """List the dumps, newest first. Torn ones are listed too."""
    from gemma4_triage.cli import dump_documents, dump_table

    store = open_store(directory)
    entries, dropped = store.list(), store.dropped_dumps()
    if as_json:
        emit_json("dump-list", dump_documents.listing(store.root, entries, dropped))
        return
    if not entries:
        say(f"no dumps in {store.root}")
        return
    dump_table.print_listing(entries)
    dropped_text = f"; {sum(dropped.values())} more were dropped by the store's caps" if dropped else ""
    say(f"{len(entries)} dumps, {size_text(sum(e.size_bytes for e in entries))}, in {store.root}{dropped_text}")


def show_dump(
    dump: DumpName,
    directory: Directory = None,
    rows: Annotated[int, typer.Option(min=1, help="How many offending rows to show.")] = 5,
    as_json: AsJson = False,
) -> None:
    """Show what a dump says: the verdict, the offending entries in their row, and what to do next."""
    from gemma4_dumps.reader import read_dump
    from gemma4_triage.cli import dump_documents, dump_view

    found = read_dump(open_store(directory).resolve(dump))
    if as_json:
        emit_json("dump", dump_documents.dump(found, rows))
    else:
        dump_view.print_dump(found, rows)


def verify(dump: DumpName, directory: Directory = None, as_json: AsJson = False) -> None:
    """Compare a dump's files with the checksums and the tensor layouts in its manifest."""
    from gemma4_dumps.verify import verify_dump
    from gemma4_triage.cli import dump_documents, dump_table

    report = verify_dump(open_store(directory).resolve(dump))
    if as_json:
        emit_json("dump-verification", dump_documents.verification(report))
    else:
        dump_table.print_verification(report)
    if not report.ok:
        raise typer.Exit(ExitCode.VIOLATION)


def prune(
    directory: Directory = None,
    older_than: Annotated[str | None, typer.Option(help="Remove what is older: 90s, 30m, 12h, 14d, 2w.")] = None,
    keep: Annotated[int | None, typer.Option(min=0, help="Remove all but this many of the newest.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be removed.")] = False,
    as_json: AsJson = False,
) -> None:
    """Remove dumps. Without a condition: what exceeds the store's caps, sparing first and latest of each kind."""
    from gemma4_triage.cli import dump_documents

    age = None if older_than is None else parse_age(older_than)
    store = open_store(directory)
    removals = store.prune(older_than=age, keep=keep, dry_run=dry_run)
    if as_json:
        emit_json("dump-removal", dump_documents.removal(store.root, removals, dry_run))
        return
    for removal in removals:
        print(removal.entry.dump_id)
    size = size_text(sum(removal.entry.size_bytes for removal in removals))
    say(f"{'Would remove' if dry_run else 'Removed'} {len(removals)} dumps, {size}, from {store.root}")
