"""`gemma4-triage doctor`: what works here, what the environment asks for, and whether that can be had."""

from dataclasses import asdict

import typer

from gemma4_dumps.errors import ExitCode
from gemma4_triage.cli.shared_options import AsJson
from gemma4_triage.terminal import emit_json, stdout_console


def register(app: typer.Typer) -> None:
    """Add the `doctor` verb to the application."""
    app.command("doctor")(doctor)


def doctor(
    as_json: AsJson = False,
) -> None:
    """Check versions, settings, GPU, plugin and dump folder.

    For example: gemma4-triage doctor

    Exits 2 if a setting cannot be read, 3 if the environment asks for something that cannot work here.
    """
    from gemma4_runtime.settings import read_settings
    from gemma4_triage.inspection.environment import survey

    checks = survey(read_settings())
    failed = [check for check in checks if check.needed and check.state == "missing"]
    if as_json:
        emit_json("doctor", {"ok": not failed, "checks": [asdict(check) for check in checks]})
    else:
        _print(checks)
    if failed:
        raise typer.Exit(ExitCode.ENVIRONMENT)


def _print(checks: list) -> None:
    from gemma4_triage.terminal import print_line

    colours = {"ok": "green", "note": "yellow", "missing": "red"}
    console, width = stdout_console(), max(len(check.name) for check in checks)
    for check in checks:
        print_line(console, (f"{check.state:<7} ", colours[check.state]), f"{check.name:<{width}}  {check.detail}")
