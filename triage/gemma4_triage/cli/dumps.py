"""`gemma4-triage dumps`: list, show, verify, export, prune."""

import os
from typing import Annotated

import typer

from gemma4_dumps.errors import ExitCode
from gemma4_dumps.wording import number_of
from gemma4_triage.cli import completions
from gemma4_triage.cli.dumps_export import export
from gemma4_triage.cli.durations import parse_age
from gemma4_triage.cli.shared_options import AsJson
from gemma4_triage.cli.store_options import ONE_DUMP, Directory, open_store
from gemma4_triage.terminal import MANNER, emit_json, print_plain, say, shell_words, size_text

DumpName = Annotated[
    str,
    typer.Argument(
        metavar="DUMP",
        help=ONE_DUMP,
        show_default=False,
        autocompletion=completions.complete_dump,
    ),
]


def register(app: typer.Typer) -> None:
    """Add the `dumps` verbs to the application."""
    verbs = typer.Typer(
        help="Look at the dumps that the guards wrote.\n\nFor example: gemma4-triage dumps show latest",
        no_args_is_help=True,
    )
    verbs.command("list")(list_dumps)
    verbs.command("ls", hidden=True)(list_dumps)
    verbs.command("show")(show_dump)
    verbs.command("verify")(verify)
    verbs.command("export")(export)
    verbs.command("prune")(prune)
    app.add_typer(verbs, name="dumps")


def list_dumps(
    directory: Directory = None,
    limit: Annotated[int, typer.Option(min=0, help="How many of the newest to list; 0: all of them.")] = 100,
    as_json: AsJson = False,
) -> None:
    """List the dumps, newest first. Torn ones are listed too, and those whose folder was renamed, behind the others.

    For example: gemma4-triage dumps list --limit 10
    """
    from itertools import chain

    from gemma4_dumps.manifest_file import MANIFEST_NAME
    from gemma4_triage.cli import dump_documents, dump_table

    store = open_store(directory)
    (names, renamed), dropped = store.all_names(), store.dropped_dumps()
    shown = names[: limit or None]
    moved = renamed[: limit - len(shown)] if limit else renamed
    hidden = len(names) + len(renamed) - len(shown) - len(moved)
    entries = chain(store.each(shown), store.each_renamed(moved))
    if as_json:
        emit_json("dump-list", dump_documents.listing(store.root, entries, hidden, dropped))
        return
    if MANNER.quiet:
        for name in (*shown, *moved):
            print_plain(name)
        return
    if not shown and not moved:
        if os.path.lexists(store.root / MANIFEST_NAME):
            say(f"{store.root} is a dump itself: gemma4-triage dumps show {shell_words([str(store.root)])}")
        else:
            say(f"no dumps in {store.root}; gemma4-triage samples has some to try")
        return
    count, size_bytes = dump_table.print_listing(entries)
    say(f"{number_of(count, 'dump')}, {size_text(size_bytes)}, in {store.root}{_not_kept(dropped)}")
    if hidden:
        say(f"{number_of(hidden, 'older one is', 'older ones are')} not shown: --limit 0 lists them too")


def _not_kept(dropped: dict[str, int]) -> str:
    if not dropped:
        return ""
    reasons = ", ".join(f"{reason} {number}" for reason, number in sorted(dropped.items()))
    return f"; {number_of(sum(dropped.values()), 'more was', 'more were')} not kept ({reasons})"


_HASHED_BYTES = 256 * 1024**2


def show_dump(
    dump: DumpName,
    directory: Directory = None,
    rows: Annotated[int, typer.Option(min=1, help="How many offending rows to show.")] = 5,
    as_json: AsJson = False,
) -> None:
    """Show what a dump says: the verdict, the offending entries in their row, and what to do next.

    For example: gemma4-triage dumps show latest

    Exits 4 if its files are damaged; its manifest is shown nevertheless. Files of more than 256 MiB are held against
    their size alone; `dumps verify` and `diagnose` hash them too.
    """
    from gemma4_dumps.reader import read_dump
    from gemma4_triage.cli import dump_documents, dump_view

    found = read_dump(open_store(directory).resolve(dump), _HASHED_BYTES)
    if as_json:
        emit_json("dump", dump_documents.dump(found, rows))
    else:
        dump_view.print_dump(found, rows)
    if found.damage:
        raise typer.Exit(ExitCode.DUMP_UNREADABLE)


def verify(dump: DumpName, directory: Directory = None, as_json: AsJson = False) -> None:
    """Compare a dump's files with the checksums and the tensor layouts in its manifest.

    For example: gemma4-triage dumps verify latest
    """
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
    older_than: Annotated[
        str | None, typer.Option(metavar="AGE", help="Remove what is older: 90s, 30m, 12h, 14d, 2w.")
    ] = None,
    keep: Annotated[
        int | None, typer.Option("--keep-newest", min=0, help="Remove all but this many of the newest.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be removed.")] = False,
    as_json: AsJson = False,
) -> None:
    """Remove dumps. Without a condition: what exceeds the store's caps, sparing first and latest of each kind.

    For example: gemma4-triage dumps prune --older-than 14d --dry-run
    """
    from gemma4_triage.cli import dump_documents

    age = None if older_than is None else parse_age(older_than)
    store = open_store(directory)
    removals = store.prune(older_than=age, keep=keep, dry_run=dry_run)
    if as_json:
        emit_json("dump-removal", dump_documents.removal(store.root, removals, dry_run))
        return
    for removal in removals:
        print_plain(removal.entry.dump_id)
    size = size_text(sum(removal.entry.size_bytes for removal in removals))
    say(f"{'Would remove' if dry_run else 'Removed'} {number_of(len(removals), 'dump')}, {size}, from {store.root}")
