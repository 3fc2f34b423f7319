"""`gemma4-triage bench probes`: decode step time and throughput of the real server, per arm."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gemma4_dumps.errors import ExitCode
from gemma4_triage.cli import completions
from gemma4_triage.cli.bench_options import Force, Out, Timeout, deliver, need_cuda, read_counts
from gemma4_triage.cli.bench_servers import measure_with_servers
from gemma4_triage.cli.shared_options import AsJson
from gemma4_triage.errors import UsageMistake
from gemma4_triage.output_file import refuse_existing
from gemma4_triage.terminal import say

if TYPE_CHECKING:
    from gemma4_repro.bench.plan import Plan

KIND = "bench-probes"
_MOST_REQUESTS = 128
_MTP = {"on": (True,), "off": (False,), "both": (False, True)}


def probes(
    out: Out = None,
    force: Force = False,
    arms: Annotated[
        str | None,
        typer.Option(
            "--arm",
            metavar="IDS",
            help="Comma-separated; none is always measured.",
            autocompletion=completions.words(completions.listed("gemma4_repro.bench.arms", "ARMS")),
        ),
    ] = None,
    batches: Annotated[
        str | None,
        typer.Option("--batch", metavar="SIZES", help="Requests at once. Default: 1,16,64, on the host engine 1,2."),
    ] = None,
    mtp: Annotated[
        str,
        typer.Option(
            "--mtp", metavar="on|off|both", help="Speculative decoding.", autocompletion=completions.words(*_MTP)
        ),
    ] = "both",
    rounds: Annotated[
        int | None,
        typer.Option(
            "--rounds",
            min=1,
            help="Counted rounds; one more goes before them. Default: 10, on the host engine 1.",
        ),
    ] = None,
    model: Annotated[
        str,
        typer.Option(
            "--model",
            metavar="scaled|e4b",
            help="The toy scaled up, or as wide and deep as E4B.",
            autocompletion=completions.words(completions.listed("gemma4_repro.bench.checkpoint", "SIZES")),
        ),
    ] = "scaled",
    copies: Annotated[
        int, typer.Option("--copies", min=1, max=8, help="Servers of each arm: equal programs differ in speed.")
    ] = 1,
    timeout_s: Timeout = 540.0,
    run_folder: Annotated[
        Path | None,
        typer.Option("--run-folder", metavar="DIR", help="For logs, instead of one below the state directory."),
    ] = None,
    host_engine: Annotated[
        bool,
        typer.Option("--host-engine", help="Smoke run with the toys on this CPU, and no measurement."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Measure what each arm adds to a decode step of SGLang's server, all arms interleaved.

    For example: gemma4-triage bench probes --mtp off -o mtp_off.json

    Needs a CUDA device and no network: the model is a scaled toy with dummy weights. Arms: none, off, log, contain,
    trap, ledger, flashinfer-3, flashinfer-5, strict-mem-check. Exits 1 if a target is missed or could not be measured,
    3 without CUDA.
    """
    from gemma4_triage.report.bench_view import print_bench

    plan = _plan(arms, batches, mtp, rounds, model, copies, timeout_s, host_engine)
    refuse_existing(out, force)
    if not host_engine:
        _need_cuda()
    document, interrupted = _measure(plan, run_folder)
    deliver(KIND, document, print_bench, out, as_json)
    raise typer.Exit(ExitCode.INTERRUPTED if interrupted else _exit_code(document))


def _plan(
    arms: str | None,
    batches: str | None,
    mtp: str,
    rounds: int | None,
    model: str,
    copies: int,
    timeout_s: float,
    host_engine: bool,
) -> Plan:
    from gemma4_repro.bench.arms import choose
    from gemma4_repro.bench.checkpoint import SIZES
    from gemma4_repro.bench.plan import CUDA_SIZES, HOST_SIZES, Plan

    if mtp not in _MTP:
        raise UsageMistake(f"--mtp {mtp!r} cannot be read", "allowed: on, off, both")
    if model not in SIZES:
        raise UsageMistake(f"--model {model!r} cannot be read", f"allowed: {', '.join(SIZES)}")
    ids = tuple(id.strip() for id in (arms or "").split(",") if id.strip())
    if arms is not None and not ids:
        raise UsageMistake(f"--arm {arms!r} names no arm", "leave it out for all of them")
    chosen = choose(ids, smoke=host_engine)
    sizes = read_counts(
        "--batch", batches if batches is not None else "1,2" if host_engine else "1,16,64", 128, "1,16,64"
    )
    lengths = HOST_SIZES if host_engine else CUDA_SIZES
    rounds = rounds or (1 if host_engine else 10)
    return Plan(chosen, sizes, _MTP[mtp], rounds, host_engine, timeout_s, size=model, copies=copies, **lengths)


def _need_cuda() -> None:
    need_cuda(
        "bench probes",
        "run it on a GPU host with SGLang installed; --host-engine tries the command out on this CPU",
    )


def _measure(plan: Plan, run_folder: Path | None) -> tuple[dict[str, Any], bool]:
    from gemma4_repro.bench.measure import run_plan
    from gemma4_triage.report.bench_document import bench_document

    return measure_with_servers(
        "bench-probes",
        run_folder,
        plan.host_engine,
        lambda folder: run_plan(plan, folder, say),
        lambda *facts: bench_document(plan, *facts),
    )


def _exit_code(document: dict[str, Any]) -> ExitCode:
    from gemma4_repro.bench.targets import MET, NOT_JUDGED

    good = all(target["status"] in (MET, NOT_JUDGED) for target in document["targets"])
    return ExitCode.OK if good else ExitCode.VIOLATION
