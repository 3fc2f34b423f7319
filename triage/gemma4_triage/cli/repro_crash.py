"""`gemma4-triage repro crash` runs one cell of the crash matrix on real weights, or with toys on this CPU."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gemma4_dumps.errors import ExitCode
from gemma4_triage.cli import completions
from gemma4_triage.cli.durations import METAVAR, time_from
from gemma4_triage.cli.finished_run import show
from gemma4_triage.cli.shared_options import AsJson, Force, Output
from gemma4_triage.errors import EnvironmentCannot, UsageMistake
from gemma4_triage.terminal import emit_json, print_plain, say, stdout_console

if TYPE_CHECKING:
    from gemma4_repro.crash.runner import Plan
    from gemma4_triage.cli.crash_plan import Asked, Checkpoints
    from gemma4_triage.runs.convert import CrashRun

NAME = "crash"
_ASK_MATRIX = "gemma4-triage repro crash --matrix lists the cells, and which of them this machine can run"
_SHOWN_PORT = 30000
_HIGHEST_PORT = 55535


def crash(
    cell: Annotated[
        str | None,
        typer.Argument(
            metavar="CELL",
            help="Which cell, such as e4b_trtllm_v1_bounds; --matrix lists all.",
            autocompletion=completions.words(completions.crash_cells),
        ),
    ] = None,
    arguments: Annotated[
        list[str] | None,
        typer.Argument(metavar="-- SGLANG_ARGUMENTS", help="More arguments for the server, behind the cell's own."),
    ] = None,
    matrix: Annotated[
        bool,
        typer.Option(
            "--matrix",
            help="List all cells, which of them this machine can run, and why not the others. Takes only --json.",
        ),
    ] = False,
    model: Annotated[
        str | None, typer.Option("--model", metavar="DIR", help="The checkpoint, a folder on this machine.")
    ] = None,
    draft_model: Annotated[
        str | None,
        typer.Option("--draft-model", metavar="DIR", help="The MTP assistant of --model, for the cells that draft."),
    ] = None,
    toy: Annotated[
        bool,
        typer.Option(
            "--toy", help="Run the cell on this CPU, with a toy in place of the model and its load scaled down."
        ),
    ] = False,
    load: Annotated[
        list[str] | None,
        typer.Option(
            "--load",
            metavar="IDS",
            help="Which published loads to send, or all. Default: summarisation, which crashed.",
            autocompletion=completions.words("all", completions.listed("gemma4_repro.crash.loads", "LOADS")),
        ),
    ] = None,
    patches: Annotated[
        str | None,
        typer.Option(
            "--patches",
            metavar="IDS",
            help="Which patches the server gets instead of the cell's, such as default or none,+clamp.",
            autocompletion=completions.words(completions.patch_sets, completions.patches("probe")),
        ),
    ] = None,
    fault: Annotated[
        str | None,
        typer.Option(
            "--fault",
            metavar="IDS",
            help="Inject swa-state-stale, the published bug; this release lacks it.",
            autocompletion=completions.words(completions.listed("gemma4_repro.crash.expected", "FAULTS")),
        ),
    ] = None,
    device_model: Annotated[
        str | None,
        typer.Option(
            "--device-model",
            metavar="sm100|sm90",
            help="With --toy: which GPU the CPU engine imitates.",
            autocompletion=completions.words("sm100", "sm90"),
        ),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            "--port",
            min=1024,
            max=_HIGHEST_PORT,
            metavar="N",
            help="The server's port on loopback. Default: a free one.",
        ),
    ] = None,
    output: Output = None,
    force: Force = False,
    time_limit: Annotated[
        float | None,
        typer.Option("--timeout", parser=time_from(1), metavar=METAVAR, help="How long each load may take."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the shell lines of the server and its clients, and stop.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Run a published crash on real weights: one server, SGLang's own client, and what was expected of this GPU.

    For example: gemma4-triage repro crash e4b_trtllm_v1 --toy

    A checkpoint that is not whole, and a machine that cannot run the cell, are refused before anything starts. The
    run's folder gets the server's log, the client's, dumps, verdict.json and TRIAGE_REPORT.md, however the server ends.

    Exits 0 if what was expected of this GPU and cell happened, 1 if not, 2 for an unknown cell or a checkpoint that is
    not whole, 3 if this machine cannot run the cell.
    """
    if matrix:
        given = {
            cell: cell,
            "--toy": toy,
            "--dry-run": dry_run,
            "--model": model,
            "--draft-model": draft_model,
            "--load": load,
            "--patches": patches,
            "--fault": fault,
            "--device-model": device_model,
            "--port": port,
            "--output": output,
            "--force": force,
            "--timeout": time_limit,
            "-- SGLANG_ARGUMENTS": arguments,
        }
        _refuse_beside_matrix([str(name) for name, value in given.items() if value])
        _matrix(as_json)
        return
    asked = _asked(cell, arguments, load, toy, model, draft_model, patches, fault, device_model)
    code = _dry_run(asked, port, as_json) if dry_run else _run(asked, port, output, force, time_limit, as_json)
    raise typer.Exit(code)


def _refuse_beside_matrix(given: list[str]) -> None:
    if given:
        raise UsageMistake(
            f"--matrix lists all cells, as they are published and as toys, and takes only --json; {given[0]} was given",
            f"leave {' and '.join(given)} out, or --matrix",
        )


def _matrix(as_json: bool) -> None:
    from gemma4_repro.crash.cells import CELLS, Cell
    from gemma4_triage.cli.crash_plan import toys, visible_gpus, what_is_in_the_way
    from gemma4_triage.report.crash_document import all_rows, matrix_document
    from gemma4_triage.report.crash_view import print_matrix

    def why_no_toy(cell: Cell) -> str | None:
        try:
            toys(cell)
        except EnvironmentCannot as error:
            return error.message
        return None

    gpus = visible_gpus()
    rows = all_rows(
        {cell.id: what_is_in_the_way(cell, gpus) for cell in CELLS}, {cell.id: why_no_toy(cell) for cell in CELLS}
    )
    if as_json:
        emit_json("crash-matrix", matrix_document(rows, gpus))
    else:
        print_matrix(stdout_console(), rows, gpus)
        say("gemma4-triage repro crash CELL --model DIR [--draft-model DIR] runs one; with --toy it needs neither")


def _asked(
    cell: str | None,
    arguments: list[str] | None,
    load: list[str] | None,
    toy: bool,
    model: str | None,
    draft_model: str | None,
    patches: str | None,
    fault: str | None,
    device_model: str | None,
) -> Asked:
    from gemma4_repro.crash.cells import find_cell
    from gemma4_repro.crash.expected import FAULTS
    from gemma4_repro.crash.loads import choose_loads
    from gemma4_triage.cli.crash_plan import SM90, SM100, Asked

    if cell is None:
        raise UsageMistake("no cell was named", _ASK_MATRIX)
    found, loads = find_cell(cell), choose_loads(tuple(load or ()))
    if toy and (model is not None or draft_model is not None):
        raise UsageMistake("--toy brings its own checkpoints", "leave --model and --draft-model out, or --toy")
    if device_model is not None and (not toy or device_model not in (SM90, SM100)):
        raise UsageMistake(f"--device-model {device_model}: the CPU engine has {SM100} and {SM90}, with --toy")
    if fault is not None and fault not in FAULTS:
        raise UsageMistake(
            f"repro crash does not know what to expect of the fault {fault!r}, only of {', '.join(FAULTS)}",
            "gemma4-triage repro corpus injects all of them",
        )
    return Asked(found, loads, toy, model, draft_model, patches, fault, device_model, tuple(arguments or ()))


def _dry_run(asked: Asked, port: int | None, as_json: bool) -> int:
    from gemma4_triage.cli.crash_plan import check_start, placeholders, shown_lines, toys

    checkpoints = toys(asked.cell) if asked.toy else placeholders(asked)
    check_start(asked, checkpoints, port or _SHOWN_PORT)
    lines = shown_lines(asked, checkpoints, port or _SHOWN_PORT, f"RUN/{asked.cell.id}")
    if as_json:
        emit_json("crash-dry-run", {"cell": asked.cell.id, "toy": asked.toy, "shell_lines": lines})
        return ExitCode.OK
    say("# the server; the clients below it once it is ready, one after the other")
    for line in lines:
        print_plain(line)
    return ExitCode.OK


def _run(
    asked: Asked, port: int | None, output: Path | None, force: bool, time_limit: float | None, as_json: bool
) -> int:
    from gemma4_repro.bench.server import free_ports, is_free
    from gemma4_repro.crash.runner import run_cell
    from gemma4_repro.engine.readiness import check_sglang
    from gemma4_repro.engine.run_folder import prepare_run_folder
    from gemma4_repro.verdict import ArmVerdict
    from gemma4_triage.cli import crash_plan
    from gemma4_triage.live_line import LiveLine
    from gemma4_triage.runs.convert import CrashRun, RanArm

    cell = asked.cell
    release = check_sglang()
    gpus = () if asked.toy else crash_plan.visible_gpus()
    checkpoints = crash_plan.toys(cell) if asked.toy else crash_plan.real_checkpoints(asked, gpus)
    if port is not None and not is_free(port):
        raise EnvironmentCannot(f"port {port} is in use, or the port 10000 above it", "name another --port, or none")
    chosen = port if port is not None else free_ports(1)[0]
    expected = crash_plan.expect(asked, crash_plan.check_start(asked, checkpoints, chosen), gpus)
    folder = prepare_run_folder(f"{NAME}-{cell.id}", (cell.id,), output, force)
    plan = crash_plan.make_plan(asked, checkpoints, chosen, folder / cell.id, time_limit)
    _announce(asked, checkpoints, plan, folder)
    device = crash_plan.device_of(asked, gpus)
    with LiveLine() as line:
        served = run_cell(plan, lambda phase, elapsed_s: line.update(f"{cell.id}: {phase}, {elapsed_s:.0f} s"))
    checks = tuple(one.check(served, None) for one in expected.expectations)
    ran = RanArm(cell.id, cell.title, device, crash_plan.settings_of(asked))
    run = CrashRun(
        cell=cell,
        folder=folder,
        sglang_version=release,
        toy=asked.toy,
        device=device,
        expected=expected,
        served=served,
        verdict=ArmVerdict(ran, served, checks),
        typed=asked.typed,
        lines=[shlex.join(plan.server_command), *(shlex.join(client.command) for client in plan.clients)],
    )
    return _report(run, as_json)


def _announce(asked: Asked, checkpoints: Checkpoints, plan: Plan, folder: Path) -> None:
    say(f"{asked.cell.id}: {asked.cell.title}")
    if asked.toy:
        say(f"TOY: {asked.cell.model.toy_note}, the real engine runs on this CPU, and every load is scaled down")
    for remark in checkpoints.remarks:
        say(f"note: {remark}")
    for client in plan.clients:
        size = client.size
        say(
            f"load {client.load.id}: {size.requests} requests, {size.at_a_time} at a time, {size.prompt_tokens} tokens "
            f"in and {size.answer_tokens} out (published: {client.load.published})"
        )
        if client.load.chosen and not asked.toy:
            say(f"  chosen here: {client.load.chosen}")
    limits = plan.limits
    say(
        f"stops when all is answered, the server or its client ends, no log grows for {limits.stall_s:.0f} s, or after "
        f"{limits.start_s:.0f} s of start or {limits.load_s:.0f} s of a load"
    )
    say(f"run folder: {folder}")


def _report(run: CrashRun, as_json: bool) -> int:
    """Write verdict.json and TRIAGE_REPORT.md, show the verdict, and return the exit code.

    Raises OutputUnwritable, EnvironmentCannot.
    """
    from gemma4_dumps.store import DumpStore
    from gemma4_triage.output_file import write_text
    from gemma4_triage.report.model.build import build_report
    from gemma4_triage.report.model.source import read_run_or_dumps
    from gemma4_triage.report.triage_markdown import NAME as REPORT_NAME
    from gemma4_triage.report.triage_markdown import render_markdown
    from gemma4_triage.runs.convert import record_of_cell
    from gemma4_triage.runs.record_file import write_record

    record = record_of_cell(run)
    path = write_record(record, run.folder)
    source = read_run_or_dumps(DumpStore(run.folder), [str(run.folder)], None)
    write_text(run.folder / REPORT_NAME, render_markdown(build_report(source, [])))
    return show(record, path, as_json)
