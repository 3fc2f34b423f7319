"""`gemma4-triage patches`: the catalog, what the environment selects from it, and everything about one of it."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer
from typer.core import TyperGroup

from gemma4_dumps.wording import names_near
from gemma4_triage.cli import completions
from gemma4_triage.cli.shared_options import AsJson
from gemma4_triage.errors import UsageMistake
from gemma4_triage.terminal import (
    MANNER,
    add_row,
    emit_json,
    is_brief,
    plain_table,
    print_line,
    print_plain,
    say,
    stdout_console,
    with_last_cut,
)

if TYPE_CHECKING:
    from gemma4_runtime.patch import Patch
    from gemma4_runtime.presets import Preset
    from gemma4_runtime.settings import Settings

_DEFAULT = "list"
PATCHES = "GEMMA4_TRIAGE_PATCHES"
_SETS = {
    "default": (
        "The fixes and optimisations that change no correct output; serve attaches them unless it is told otherwise.",
        "GEMMA4_TRIAGE_PATCHES=default,-ID leaves one out, default,+ID adds one.",
    ),
    "none": ("No fix and no optimisation.", "To compare with SGLang as it is shipped."),
}
_SPELLINGS = {"optimization": "optimisation", "host-leaf": "host leaf"}
_ORDER = ("fix", "optimisation", "probe", "fault", "host leaf")
"""Kinds in the order in which a list shows them: what a server is given first, what breaks it and stand-ins last."""


class _ListUnlessNamed(TyperGroup):
    """`patches` is `patches list`, with its options too."""

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:
        """See click."""
        if not args or (args[0].startswith("-") and args[0] not in ctx.help_option_names):
            args = [_DEFAULT, *args]
        return super().parse_args(ctx, args)


def register(app: typer.Typer) -> None:
    """Add the `patches` verbs to the application."""
    verbs = typer.Typer(
        cls=_ListUnlessNamed,
        help="Everything that can be attached to SGLang: `patches` is short for `patches list`.\n\n"
        "For example: gemma4-triage patches explain yoco",
    )
    verbs.command(_DEFAULT)(list_patches)
    verbs.command("explain")(explain_patch)
    app.add_typer(verbs, name="patches")


def list_patches(
    kind: Annotated[
        str | None,
        typer.Option(
            "--kind",
            help="Only probe, fix, optimisation, fault or 'host leaf'.",
            autocompletion=completions.words(completions.kinds),
        ),
    ] = None,
    sglang: Annotated[
        str | None,
        typer.Option(
            "--sglang",
            metavar="RELEASE",
            help="What each patch is in that release of SGLang, which need not be here.",
            autocompletion=completions.words(completions.releases),
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List every patch: kind, default, whether the environment selects it now, since when upstream has it, source.

    For example: gemma4-triage patches list --kind fix

    With --sglang: whether it attaches to that release, or where SGLang has it, or why it is not ported.
    Exits 2 for a release that is not known.
    """
    from gemma4_runtime.catalog import CATALOG
    from gemma4_runtime.patch import Kind
    from gemma4_runtime.releases import installed_or_base
    from gemma4_runtime.standing import releases_of
    from gemma4_triage.inspection.patch_state import state_here

    kinds = [known.value for known in Kind]
    kind = _SPELLINGS.get(kind or "", kind)
    if kind is not None and kind not in kinds:
        raise UsageMistake(f"there is no kind of patch called {kind!r}", f"kinds: {', '.join(kinds)}")
    if sglang is not None:
        _in_release(sglang, [patch for patch in CATALOG if kind in (None, patch.kind.value)], as_json)
        return
    settings, selected = _environment()
    release = installed_or_base()
    rows = [
        {
            "id": patch.id,
            "kind": patch.kind.value,
            "title": patch.title,
            "origin": patch.origin,
            "upstream": patch.upstream,
            "releases": releases_of(patch),
            "default": patch.default,
            "selected": patch.id in selected,
            "state": state_here(patch, settings, patch.id in selected, release),
        }
        for patch in CATALOG
        if kind in (None, patch.kind.value)
    ]
    if as_json:
        emit_json("patches", {"patches": rows})
        return
    if MANNER.quiet:
        print_plain("\n".join(row["id"] for row in rows))
        return
    _print_list(rows)
    say("gemma4-triage patches explain ID says everything about one of them, and how to switch it on and off")
    say("-v shows whole titles and sources")
    say("GEMMA4_TRIAGE_PATCHES chooses fixes and optimisations, SGLANG_TRTLLM_MHA_DEBUG=log|contain|trap|1 probes")
    say("GEMMA4_TRIAGE_FAULTS=ID chooses faults, which break a server on purpose")


def explain_patch(
    patch_id: Annotated[
        str,
        typer.Argument(
            metavar="ID",
            help="As `patches list` shows it, a preset of `serve`, default or none.",
            show_default=False,
            autocompletion=completions.words(completions.explained),
        ),
    ],
    as_json: AsJson = False,
) -> None:
    """Say everything about one patch: why, where it acts and what happens elsewhere, state, switches, targets, proof.

    For example: gemma4-triage patches explain yoco

    Exits 2 for an ID that the catalog does not have.
    """
    from gemma4_dumps.store import default_root
    from gemma4_runtime.catalog import CATALOG
    from gemma4_runtime.presets import PRESETS, Preset, preset
    from gemma4_triage.inspection.explain_patch import explain

    if (found := preset(patch_id)) is not None:
        _explain_preset(found, f"--preset {found.id}", as_json)
        return
    if patch_id in _SETS:
        title, why = _SETS[patch_id]
        _explain_preset(Preset(patch_id, title, why, {PATCHES: patch_id}), f"--patches {patch_id}", as_json)
        return
    known = {patch.id: patch for patch in CATALOG}
    if patch_id not in known:
        names = [*known, *_SETS, *(one.id for one in PRESETS)]
        hint = names_near(patch_id, names, f"gemma4-triage patches list shows all {len(known)}")
        raise UsageMistake(f"there is no patch called {patch_id!r}", hint)
    settings, selected = _environment()
    document = explain(known[patch_id], settings, patch_id in selected, settings.dump_dir or default_root())
    if as_json:
        emit_json("patch", {"patch": document})
    else:
        _print_one(document)


def _explain_preset(found: "Preset", option: str, as_json: bool) -> None:
    from gemma4_runtime.releases import installed_or_base
    from gemma4_runtime.selection import select
    from gemma4_triage.cli.server_start import settings_of

    chosen = select(settings_of(found.variables), release=installed_or_base())
    document = {
        "id": found.id,
        "title": found.title,
        "why": found.why,
        "variables": dict(found.variables),
        "patches": [{"id": patch.id, "kind": patch.kind.value} for patch in chosen],
    }
    if as_json:
        emit_json("preset", {"preset": document})
        return
    console = stdout_console()
    print_line(console, f"{found.id}: {found.title}", style="bold")
    print_line(console, found.why)
    for kind in dict.fromkeys(patch.kind.value for patch in chosen):
        print_line(console, f"{kind}: {', '.join(patch.id for patch in chosen if patch.kind.value == kind)}")
    print_line(console, "sets: " + " ".join(f"{name}={value}" for name, value in found.variables.items()))
    print_line(console, f"gemma4-triage serve {option} --model-path MODEL")


def _in_release(release: str, patches: list["Patch"], as_json: bool) -> None:
    from gemma4_runtime.releases import KNOWN, RUNNABLE, is_release, nearest
    from gemma4_runtime.standing import counts, standing

    if release not in KNOWN:
        raise UsageMistake(
            f"SGLang {release!r} is not known",
            f"known releases: {', '.join(KNOWN)}"
            + (f"; the nearest is {nearest(release)}" if is_release(release) else ""),
        )
    found = [(patch, standing(patch, release)) for patch in patches]
    total = counts(one for _, one in found)
    if as_json:
        rows = [
            {"id": patch.id, "kind": patch.kind.value, "default": patch.default, "state": one.state.value}
            | {"why": one.why, "missing_targets": list(one.missing)}
            for patch, one in found
        ]
        emit_json("patches", {"sglang": release, "supported": release in RUNNABLE, "counts": total, "patches": rows})
        return
    if MANNER.quiet:
        print_plain("\n".join(patch.id for patch in patches))
        return
    rows = [
        {"id": patch.id, "kind": patch.kind.value, "default": patch.default, "standing": one} for patch, one in found
    ]
    columns: dict[str, Callable[[dict], str]] = {
        "id": lambda row: row["id"],
        "kind": lambda row: row["kind"],
        "default": lambda row: "yes" if row["default"] else "",
        f"in SGLang {release}": lambda row: row["standing"].state.value,
        "where, or why not": lambda row: row["standing"].why,
    }
    if is_brief(stdout_console()):
        del columns["default"]
    _print_rows(rows, columns)
    say("gemma4-triage patches explain ID says the whole of it, -v here of all.")
    say(f"SGLang {release}: " + ", ".join(f"{state} {number}" for state, number in total.items()))


def _environment() -> tuple["Settings", set[str]]:
    """Return the settings, and ids of the patches that they select."""
    from gemma4_runtime.releases import installed_or_base
    from gemma4_runtime.selection import select
    from gemma4_runtime.settings import read_settings

    settings = read_settings()
    return settings, {patch.id for patch in select(settings, release=installed_or_base())}


def _print_list(rows: list[dict]) -> None:
    """Print what a person may choose first; with -v also since when upstream has it, and where it was seen.

    On a narrow terminal what the environment selects is shown only if that is any.
    """
    columns: dict[str, Callable[[dict], str]] = {
        "id": lambda row: row["id"],
        "kind": lambda row: row["kind"],
        "default": lambda row: "yes" if row["default"] else "",
        "here": lambda row: "on" if row["selected"] else "off",
        "what it does": lambda row: row["title"],
    }
    if MANNER.verbose:
        columns |= {"upstream since": lambda row: row["upstream"], "source": lambda row: row["origin"]}
    if is_brief(stdout_console()) and not any(row["selected"] for row in rows):
        del columns["here"]
    _print_rows(rows, columns)


def _print_rows(rows: list[dict], columns: dict[str, Callable[[dict], str]]) -> None:
    """Print a line for each row, the last column cut to fit; on a narrow terminal they stand below their kinds."""
    console = stdout_console()
    brief = is_brief(console)
    columns = {name: cell for name, cell in columns.items() if not (brief and name == "kind")}
    rows = sorted(rows, key=lambda row: _ORDER.index(row["kind"]))
    cells = with_last_cut(console, [*columns], [[cell(row) for cell in columns.values()] for row in rows])
    if not any(row[-1] for row in cells):
        columns.popitem()
        cells = [row[:-1] for row in cells]
    table, kind = plain_table(*columns), ""
    for row, shown in zip(rows, cells, strict=True):
        if brief and row["kind"] != kind:
            kind = row["kind"]
            add_row(table, (kind, "bold cyan"), *[""] * (len(columns) - 1))
        add_row(table, *shown)
    console.print(table)


def _print_one(document: dict) -> None:
    console = stdout_console()
    releases, installed = ", ".join(document["releases"]), document["installed_sglang"] or "none"
    attached = [f"{row['how']} {row['path']}" for row in document["attachments"]]
    for name, value in (
        (document["kind"], document["id"]),
        ("what it does", document["title"]),
        ("why", document["why"]),
        ("where it acts", document["eligibility"]),
        ("elsewhere", document["fallback"]),
        ("state here", document["state"]),
        ("last process", document["last_process"] or "none on record has been asked for it"),
        ("default", "yes" if document["default"] else "no"),
        ("on", document["switch_on"]),
        ("off alone", document["switch_off"]),
        ("variables", ", ".join(document["variables"])),
        ("source", document["origin"]),
        ("upstream since", document["upstream"]),
        ("written for", f"SGLang {releases}; installed here: {installed}"),
        *((f"in {release}", said) for release, said in document["elsewhere"].items()),
        ("attaches", "\n".join(attached)),
        ("self test", document["self_test"]),
        ("proof", "\n".join(document["proof"])),
        ("links", "\n".join(document["links"])),
    ):
        for at, line in enumerate(value.splitlines() if value else ()):
            print_line(console, (f"{name if at == 0 else '':<14}  ", "bold"), line)
