"""`gemma4-triage dumps export`: a zip, with its README, to hand on."""

import hashlib
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gemma4_dumps.wording import number_of
from gemma4_triage.cli import completions
from gemma4_triage.cli.shared_options import AsJson
from gemma4_triage.cli.store_options import SEVERAL_DUMPS, Directory, open_store
from gemma4_triage.errors import EnvironmentCannot, ExpectationFailed, UsageMistake
from gemma4_triage.output_file import refuse_existing
from gemma4_triage.terminal import emit_json, printable, say, size_text, warn

if TYPE_CHECKING:
    from gemma4_dumps.archive import Archived, Candidate


def export(
    dumps: Annotated[
        list[str],
        typer.Argument(
            metavar="DUMP...", help=SEVERAL_DUMPS, show_default=False, autocompletion=completions.complete_dump
        ),
    ],
    out: Annotated[Path, typer.Option("--output", "-o", metavar="X.zip", help="The zip to write.", show_default=False)],
    directory: Directory = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the zip if it exists.")] = False,
    allow_damaged: Annotated[
        bool, typer.Option("--allow-damaged", help="Also what fails verification; the README says so.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Put dumps into one zip that carries its own README.

    For example: gemma4-triage dumps export latest -o evidence.zip

    The same dumps give the same zip. Every command that takes a dump reads it as it is.
    """
    from gemma4_dumps.archive import write_archive
    from gemma4_dumps.included import words
    from gemma4_triage.report.export_readme import export_readme

    refuse_existing(out, force)
    candidates = _examined(dumps, directory)
    if not allow_damaged:
        _refuse_damaged(candidates)
    try:
        archived = write_archive(out, candidates, export_readme)
        document = _document(out, archived)
    except OSError as error:
        raise EnvironmentCannot(f"{out} cannot be written: {error.strerror}", "name another --output") from error
    if as_json:
        emit_json("dump-export", document)
    for dump in document["dumps"]:
        if dump["included"]:
            held = printable(words(dump["included"]))
            warn(f"warning: {dump['dump_id']} holds {held} of requests: confidential")
        elif dump["included"] is None:
            warn(f"warning: the manifest of {dump['dump_id']} is unreadable; it may hold KV values and token ids")
    say(f"Wrote {out}: {number_of(len(archived), 'dump')}, {size_text(document['size_bytes'])}")


def _examined(dumps: list[str], directory: Path | None) -> "list[Candidate]":
    from gemma4_dumps.archive import examine

    store = open_store(directory)
    paths = {path.resolve(): path for path in map(store.resolve, dumps)}
    candidates = sorted((examine(path) for path in paths.values()), key=lambda candidate: candidate.folder)
    for one, next_one in pairwise(candidates):
        if one.folder == next_one.folder:
            raise UsageMistake(
                f"{one.path} and {next_one.path} would both be {one.folder} in the zip", "export them one by one"
            )
    return candidates


def _refuse_damaged(candidates: "list[Candidate]") -> None:
    for candidate in candidates:
        if candidate.error is not None:
            raise candidate.error
        if candidate.problems:
            raise ExpectationFailed(
                f"{candidate.path.name} is damaged: {candidate.problems[0]}",
                "--allow-damaged exports it as it is, and says so in the README",
            )


def _document(out: Path, archived: "list[Archived]") -> dict[str, Any]:
    from gemma4_dumps.included import sensitive

    with open(out, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return {
        "path": str(out),
        "size_bytes": out.stat().st_size,
        "sha256": digest,
        "dumps": [
            {
                "dump_id": dump.candidate.folder,
                "path": str(dump.candidate.path),
                "problems": list(dump.candidate.problems),
                # None: nobody can tell.
                "included": None if dump.candidate.manifest is None else list(sensitive(dump.candidate.manifest)),
                "files": {name: record.model_dump() for name, record in dump.files.items()},
            }
            for dump in archived
        ],
    }
