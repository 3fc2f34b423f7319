"""`gemma4-triage samples`: something to try."""

from __future__ import annotations

import os
import shlex
import shutil
from pathlib import Path
from typing import Annotated

import typer

from gemma4_dumps.wording import names_near
from gemma4_triage.cli import completions
from gemma4_triage.cli.shared_options import AsJson
from gemma4_triage.errors import EnvironmentCannot, UsageMistake
from gemma4_triage.terminal import MANNER, emit_json, print_line, print_plain, say, stdout_console


def register(app: typer.Typer) -> None:
    """Add the `samples` verb."""
    app.command("samples")(samples)


def samples(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME]...",
            help="Samples by name. Default: all of them.",
            autocompletion=completions.words(completions.samples),
        ),
    ] = None,
    output: Annotated[
        str | None, typer.Option("--output", "-o", metavar="DIR", help="Copy them into this folder.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace what lies there under a sample's name.")] = False,
    as_json: AsJson = False,
) -> None:
    """List the sample dumps and logs that come with the package, each with the command that reads it.

    For example: gemma4-triage samples page-table -o ./try

    They are of real runs, and need neither a GPU nor torch. Exits 2 for a name that is none, 3 if they are not there.
    """
    from gemma4_triage.samples import SAMPLES, place

    known = {sample.id: sample for sample in SAMPLES}
    if unknown := [name for name in names or () if name not in known]:
        raise UsageMistake(
            f"there is no sample called {unknown[0]!r}",
            names_near(unknown[0], known, "gemma4-triage samples lists all"),
        )
    rows = []
    for sample in [known[name] for name in dict.fromkeys(names or known)]:
        path = place(sample)
        if path is None:
            raise EnvironmentCannot(f"the sample {sample.id} is not there", "install gemma4-triage again")
        rows.append((sample, path))
    if output is not None:
        if os.path.lexists(folder := Path(output).expanduser()) and not folder.is_dir():
            raise UsageMistake(f"{output} is not a directory", "--output takes a directory")
        targets = [folder / path.name for _, path in rows]
        if taken := [target for target in targets if os.path.lexists(target)]:
            if not force:
                raise UsageMistake(f"{taken[0]} exists", "name another folder, or replace it with --force")
            if links := [target for target in taken if target.is_symlink()]:
                raise UsageMistake(f"{links[0]} is a link", "name another folder")
        _copy([path for _, path in rows], targets)
        rows = [(sample, target) for (sample, _), target in zip(rows, targets, strict=True)]
    here = f"{os.getcwd()}/"
    found = [
        {
            "id": sample.id,
            "title": sample.title,
            "path": str(path),
            "command": sample.command.replace("PATH", shlex.quote(str(path).removeprefix(here))),
        }
        for sample, path in rows
    ]
    if as_json:
        emit_json("samples", {"samples": found})
        return
    console = stdout_console()
    for row in found:
        if MANNER.quiet:
            print_plain(row["id"])
            continue
        print_line(console, f"{row['id']}: {row['title']}")
        print_line(console, f"  {row['command']}")
    if output is not None:
        say(f"Wrote {output}")


def _copy(paths: list[Path], targets: list[Path]) -> None:
    try:
        for path, target in zip(paths, targets, strict=True):
            target.parent.mkdir(parents=True, exist_ok=True)
            if path.is_dir():
                shutil.copytree(path, target, dirs_exist_ok=True)
            else:
                shutil.copy(path, target)
    except OSError as error:
        raise EnvironmentCannot(
            f"{target} cannot be written: {error.strerror or error}", "name another folder"
        ) from error
