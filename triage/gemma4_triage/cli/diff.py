"""`gemma4-triage diff`: hold one dump against another, or one live run against another."""

from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from gemma4_dumps.errors import ExitCode
from gemma4_triage.cli import completions, diff_live
from gemma4_triage.cli.shared_options import AsJson
from gemma4_triage.cli.store_options import ONE_DUMP, Directory, open_store
from gemma4_triage.terminal import emit_json, stdout_console

_DEFAULT = "dumps"


class _DumpsUnlessNamed(TyperGroup):
    """`diff A B` is `diff dumps A B`. A dump called like a command needs a path: ./dumps."""

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:
        """See click."""
        if args and args[0] not in self.commands and args[0] not in ctx.help_option_names:
            args = [_DEFAULT, *args]
        return super().parse_args(ctx, args)


def register(app: typer.Typer) -> None:
    """Add the `diff` verbs to the application."""
    verbs = typer.Typer(
        cls=_DumpsUnlessNamed,
        help="Hold one dump or one live run against another: `diff DUMP_A DUMP_B` is short for "
        "`diff dumps DUMP_A DUMP_B`.\n\n"
        "For example: gemma4-triage diff patches --with default --base default,-swa-state-swap",
        no_args_is_help=True,
    )

    verbs.command(_DEFAULT)(dumps)
    verbs.command("backends")(diff_live.backends)
    verbs.command("patches")(diff_live.patches)
    app.add_typer(verbs, name="diff")


def _dump(name: str, said: str) -> Any:
    return typer.Argument(metavar=name, help=said, show_default=False, autocompletion=completions.complete_dump)


def dumps(
    dump_a: Annotated[str, _dump("DUMP_A", ONE_DUMP)],
    dump_b: Annotated[str, _dump("DUMP_B", "The same.")],
    directory: Directory = None,
    rows: Annotated[
        int, typer.Option(min=1, max=1_000_000, help="How many differences to show of each section and tensor.")
    ] = 12,
    volatile: Annotated[
        bool, typer.Option("--volatile", help="Also show when, where and under which name they were written.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show in what two dumps differ: manifests, guards, tensors and events, and what differs first.

    For example: gemma4-triage diff dumps DUMP_A DUMP_B

    Volatile fields (dump_id, created_utc, pid, ...) never count; NaN is equal to NaN.
    Exits 0 if the dumps are equal, 1 if they differ, 2 for a dump that is not there, 4 for one that cannot be
    read or is damaged.
    """
    from gemma4_triage.cli.dump_view import print_damage
    from gemma4_triage.compare.compare_dumps import compare_dumps
    from gemma4_triage.compare.side import open_side
    from gemma4_triage.report.diff_document import diff_document
    from gemma4_triage.report.diff_view import print_diff

    store = open_store(directory)
    a, b = open_side("A", store.resolve(dump_a)), open_side("B", store.resolve(dump_b))
    for side in (a, b):
        print_damage(side.dump, as_json, f"{side.letter}, {side.dump.path.name}")
    comparison = compare_dumps(a, b, rows)
    if as_json:
        emit_json("dump-diff", diff_document(a, b, comparison, rows, volatile))
    else:
        print_diff(stdout_console(), a, b, comparison, rows, volatile)
    if a.dump.damage or b.dump.damage:
        raise typer.Exit(ExitCode.DUMP_UNREADABLE)
    raise typer.Exit(ExitCode.OK if comparison.equal else ExitCode.VIOLATION)
