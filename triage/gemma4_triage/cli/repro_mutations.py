"""`gemma4-triage repro mutations` measures the diagnosis: corruptions of the live engine, each with its truth known."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from gemma4_dumps.errors import ExitCode
from gemma4_triage.cli import completions
from gemma4_triage.cli.durations import METAVAR, time_from
from gemma4_triage.cli.shared_options import AsJson, Force, Output
from gemma4_triage.errors import NothingChecked
from gemma4_triage.terminal import emit_document, say, stdout_console

if TYPE_CHECKING:
    from gemma4_repro.mutations.matrix import Matrix
    from gemma4_repro.mutations.runner import Options

NAME = "mutations"
MATRIX_NAME, TEXT_NAME = "matrix.json", "matrix.txt"


def mutations(
    seed: Annotated[
        int,
        typer.Option(
            "--seed", min=0, metavar="N", help="The seed of the draw: the same seed draws the same mutations."
        ),
    ],
    count: Annotated[
        int,
        typer.Option(
            "--count", min=1, max=100_000, metavar="M", help="How many; a longer draw begins with a shorter one."
        ),
    ] = 25,
    output: Output = None,
    force: Force = False,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the interrupted run of this seed in --output.")
    ] = False,
    bare: Annotated[
        bool,
        typer.Option(
            "--bare/--no-bare",
            help="Run each mutation without probes too: what SGLang notices, and what becomes of tokens.",
        ),
    ] = True,
    probes: Annotated[
        Literal["trap", "contain"],
        typer.Option(
            "--probes",
            metavar="trap|contain",
            help="trap, with an audit after every step, or contain, with the audit at idle, as one serves.",
            autocompletion=completions.words("trap", "contain"),
        ),
    ] = "trap",
    keep: Annotated[bool, typer.Option("--keep", help="Keep request.json and phase.txt of every engine too.")] = False,
    time_limit: Annotated[
        float | None,
        typer.Option("--timeout", parser=time_from(1), metavar=METAVAR, help="For each engine, instead of 2m."),
    ] = None,
    side_by_side: Annotated[
        int | None,
        typer.Option(
            "--side-by-side",
            min=1,
            metavar="N",
            help="How many engines run at once, instead of 2 where there is room. Each takes a core and 2 GiB.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Corrupt one entry of the live engine at a time, and score what diagnose says of it against the truth.

    For example: gemma4-triage repro mutations --seed 7 --count 25

    Each mutation is of one structure, in one way, in one phase of serving, drawn by --seed. docs/mutations.md says what
    is drawn, how it is scored, and what runs of it showed.

    Exits 0 if every aim of the matrix is met, 1 if not, 2 for a folder that cannot be resumed or written over, 3 if
    this machine cannot run the engine, 5 if no mutation acted.
    """
    from gemma4_repro.mutations.load import Probes
    from gemma4_repro.mutations.runner import Options

    options = Options(seed, count, output, force, resume, bare, time_limit, keep, side_by_side, Probes(probes))
    matrix = _run(options)
    _write(matrix, Path(matrix.folder))
    if as_json:
        emit_document(matrix.model_dump(mode="json"))
    else:
        from gemma4_triage.report.mutations_view import print_matrix

        print_matrix(stdout_console(), matrix)
    say(f"Wrote {Path(matrix.folder) / MATRIX_NAME}")
    if matrix.exit_code == ExitCode.NOTHING_CHECKED and not as_json:
        raise NothingChecked("no mutation acted, so nothing was measured", "draw more of them: --count")
    raise typer.Exit(matrix.exit_code)


def _run(options: Options) -> Matrix:
    from gemma4_repro.mutations.runner import run_mutations
    from gemma4_triage.diagnose.named_causes import named_causes
    from gemma4_triage.runs.progress import MutationsProgress

    with MutationsProgress() as progress:
        return run_mutations(options, named_causes, progress)


def _write(matrix: Matrix, folder: Path) -> None:
    """Write the matrix as JSON and as text. Raises OutputUnwritable."""
    from gemma4_repro.engine.run_folder import writing
    from gemma4_triage.report.mutations_view import matrix_text

    with writing(folder):
        (folder / MATRIX_NAME).write_text(matrix.model_dump_json(indent=1) + "\n", encoding="utf-8")
        (folder / TEXT_NAME).write_text(matrix_text(matrix), encoding="utf-8")
