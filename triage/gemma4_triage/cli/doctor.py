"""`gemma4-triage doctor`: what works here, what the environment asks for, and whether that can be had."""

import gzip
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from gemma4_dumps.errors import ExitCode
from gemma4_triage.cli import completions
from gemma4_triage.cli.shared_options import AsJson
from gemma4_triage.errors import EnvironmentCannot, UsageMistake
from gemma4_triage.terminal import emit_json, print_plain, stdout_console


def register(app: typer.Typer) -> None:
    """Add the `doctor` verb to the application."""
    app.command("doctor")(doctor)


LOCKS = {
    "runtime": "constraints.txt",
    "sglang-0.5.13": "constraints.txt",
    "sglang-0.5.23": "constraints-0.5.23.txt",
}
"""By extra of the package, the file with every version that it was tested with."""


def doctor(
    constraints: Annotated[
        str | None,
        typer.Option(
            "--constraints",
            metavar="EXTRA",
            help="Print every version that this extra was tested with, for pip -c.",
            autocompletion=completions.words(*LOCKS),
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check versions, settings, GPU, plugin and dump folder, and list what each patch is in the installed SGLang.

    For example: gemma4-triage doctor

    Without a clone, `gemma4-triage doctor --constraints runtime > runtime.txt` writes what
    `pip install -c runtime.txt 'gemma4-triage[runtime]'` needs.

    Exits 2 if a setting cannot be read, 3 if the environment asks for something that cannot work here.
    """
    if constraints is not None:
        _print_constraints(constraints, as_json)
        return
    from gemma4_runtime.settings import read_settings
    from gemma4_triage.inspection.environment import patches_here, survey

    checks = survey(read_settings())
    release, patches = patches_here()
    failed = [check for check in checks if check.needed and check.state == "missing"]
    if as_json:
        emit_json("doctor", {"ok": not failed, "checks": [asdict(check) for check in checks], "patches": patches})
    else:
        _print(checks)
        _print_patches(release, patches)
    if failed:
        raise typer.Exit(ExitCode.ENVIRONMENT)


def _print_constraints(extra: str, as_json: bool) -> None:
    if extra not in LOCKS:
        raise UsageMistake(f"there are no constraints for {extra!r}", f"extras: {', '.join(LOCKS)}")
    text = _lock(LOCKS[extra])
    if as_json:
        lines = [line for line in text.splitlines() if line and not line.startswith("#")]
        emit_json("constraints", {"extra": extra, "constraints": lines})
    else:
        print_plain(text.rstrip("\n"))


def _lock(name: str) -> str:
    """Return what a lock says: of the source tree, or packed as an install has it. Raises EnvironmentCannot."""
    packed, own = Path(__file__).with_name(f"{name}.gz"), Path(__file__).resolve().parents[3] / name
    try:
        return gzip.decompress(packed.read_bytes()).decode() if packed.is_file() else own.read_text()
    except FileNotFoundError as error:
        raise EnvironmentCannot(f"{name} is not there", "install gemma4-triage again") from error


def _print(checks: list) -> None:
    from gemma4_triage.terminal import print_line

    colours = {"ok": "green", "note": "yellow", "missing": "red"}
    console, width = stdout_console(), max(len(check.name) for check in checks)
    for check in checks:
        print_line(console, (f"{check.state:<7} ", colours[check.state]), f"{check.name:<{width}}  {check.detail}")


def _print_patches(release: str, patches: list[dict[str, str]]) -> None:
    """Print one row per state and kind: on one line of a pipe, for whoever looks for a patch with grep."""
    if not patches:
        return
    from gemma4_triage.terminal import add_row, plain_table, print_line

    ids: dict[tuple[str, str], list[str]] = {}
    for row in patches:
        ids.setdefault((row["state"], row["kind"]), []).append(row["id"])
    order = list(dict.fromkeys(row["state"] for row in patches))
    table = plain_table("state", "kind", "patches")
    for (state, kind), names in sorted(ids.items(), key=lambda item: order.index(item[0][0])):
        add_row(table, state, kind, ", ".join(names))
    console = stdout_console()
    print_line(console, "")
    print_line(console, f"in SGLang {release}; gemma4-triage patches list --sglang {release} says where and why:")
    console.print(table)
