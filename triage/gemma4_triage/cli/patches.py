"""`gemma4-triage patches`: the catalog, and what the environment selects from it."""

from typing import Annotated

import typer

from gemma4_triage.cli.output import emit_json, say, stdout_console
from gemma4_triage.errors import UsageMistake


def register(app: typer.Typer) -> None:
    """Add the `patches` verb to the application."""
    app.command("patches")(patches)


def patches(
    kind: Annotated[
        str | None, typer.Option("--kind", help="Only probe, fix, optimisation, fault or 'host leaf'.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")] = False,
) -> None:
    """List every patch: what it attaches, where it comes from, and whether the environment selects it now."""
    from gemma4_runtime.catalog import CATALOG
    from gemma4_runtime.errors import SettingsError
    from gemma4_runtime.patch import Kind
    from gemma4_runtime.selection import select
    from gemma4_runtime.settings import read_settings

    kinds = [known.value for known in Kind]
    if kind is not None and kind not in kinds:
        raise UsageMistake(f"there is no kind of patch called {kind!r}", f"kinds: {', '.join(kinds)}")
    try:
        selected = {patch.id for patch in select(read_settings())}
    except SettingsError as error:
        raise UsageMistake(str(error), "correct or unset the variable; a server would refuse to start") from None
    rows = [
        {
            "id": patch.id,
            "kind": patch.kind.value,
            "title": patch.title,
            "origin": patch.origin,
            "upstream": patch.upstream,
            "releases": list(patch.releases),
            "default": patch.default,
            "selected": patch.id in selected,
        }
        for patch in CATALOG
        if kind in (None, patch.kind.value)
    ]
    if as_json:
        emit_json("patches", {"patches": rows})
        return
    _print(rows)
    say("select fixes with GEMMA4_TRIAGE_PATCHES=default or by id, probes with SGLANG_TRTLLM_MHA_DEBUG=log|trap|1,")
    say("faults with GEMMA4_TRIAGE_FAULTS=ID (they break a server on purpose)")


def _print(rows: list[dict]) -> None:
    from rich.box import SIMPLE
    from rich.table import Table

    table = Table("id", "kind", "default", "now", "what it does", "upstream", box=SIMPLE)
    for row in rows:
        default, now = ("yes" if row[key] else "" for key in ("default", "selected"))
        table.add_row(row["id"], row["kind"], default, now, row["title"], row["upstream"])
    stdout_console().print(table)
