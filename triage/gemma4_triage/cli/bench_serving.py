"""`gemma4-triage bench serving`: what the optimisations are worth to a load, on real servers of the models' sizes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gemma4_triage.cli import completions
from gemma4_triage.cli.bench_options import Force, Out, Timeout, deliver, exit_code, need_cuda, read_counts, read_words
from gemma4_triage.cli.bench_servers import measure_with_servers
from gemma4_triage.cli.shared_options import AsJson
from gemma4_triage.errors import UsageMistake
from gemma4_triage.output_file import refuse_existing
from gemma4_triage.terminal import say

if TYPE_CHECKING:
    from gemma4_repro.serving_bench.plan import ServingPlan

KIND = "bench-serving"


def serving(
    load: Annotated[
        str,
        typer.Argument(
            metavar="LOAD",
            help="prefill, long-context, pictures, graphs, lengths, lengths-mtp, decode, mtp, mtp-batches.",
            autocompletion=completions.words(completions.listed("gemma4_repro.serving_bench.loads", "LOADS")),
        ),
    ],
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            metavar="IDS",
            help="Which of the load's models; default: all of them.",
            autocompletion=completions.words_of("load", completions.models_of_load),
        ),
    ] = None,
    arms: Annotated[
        str | None,
        typer.Option(
            "--arm",
            metavar="IDS",
            help="Which of the load's arms; default: all of them. none is always measured.",
            autocompletion=completions.words_of("load", completions.arms_of_load),
        ),
    ] = None,
    requests: Annotated[
        str | None,
        typer.Option(
            "--requests", metavar="NUMBERS", help="Only the load's shapes with so many requests at once; default: all."
        ),
    ] = None,
    rounds: Annotated[int | None, typer.Option("--rounds", min=3, help="Bursts per arm and shape; default: 7.")] = None,
    gpus: Annotated[
        int,
        typer.Option("--gpus", min=1, max=16, help="Spread the servers over so many GPUs, and measure 26b whole."),
    ] = 1,
    timeout_s: Timeout = 540.0,
    host_engine: Annotated[
        bool,
        typer.Option("--host-engine", help="Try the command out on this CPU, on a toy, one round: no measurement."),
    ] = False,
    also_sglang: Annotated[
        Path | None,
        typer.Option("--also-sglang", metavar="DIR", help="One more arm: the SGLang installed in this folder."),
    ] = None,
    run_folder: Annotated[
        Path | None, typer.Option("--run-folder", metavar="DIR", help="For the servers' logs and dumps.")
    ] = None,
    out: Out = None,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Send one load to servers with different patches, side by side, and compare times and answers.

    For example: gemma4-triage bench serving prefill --model e2b -o prefill.json

    prefill: 7000 tokens in, 10 out, for yoco. long-context: more than the KV pools hold, for owner-only-kv. pictures:
    six to a request, for vision-batching. graphs, lengths, lengths-mtp: prompts of every length, for piecewise-
    multimodal. decode: long answers, for small-m-linear and decode-attention. mtp: chats and summaries with drafts, for
    mtp-v2. mtp-batches: one chat to 128 at once, with drafts and without. Models have their real layers and dims and
    random weights. Needs a CUDA device and no network. Exits 1 if an answer is wrong, or an aim is missed or could not
    be measured, 3 without CUDA.
    """
    from gemma4_repro.serving_bench.loads import HOST_LOADS
    from gemma4_repro.serving_bench.plan import make_plan, other_release
    from gemma4_triage.report.serving_bench_view import print_serving_bench

    if host_engine:
        _refuse_ignored(
            {
                "--model": model,
                "--arm": arms,
                "--requests": requests,
                "--rounds": rounds,
                "--gpus": None if gpus == 1 else gpus,
                "--also-sglang": also_sglang,
            }
        )
    also = () if also_sglang is None else (other_release(also_sglang),)
    chosen = (tuple(read_words("--model", model)), tuple(read_words("--arm", arms)))
    numbers = () if requests is None else read_counts("--requests", requests, 1024, "1,64")
    plan = make_plan(load, chosen[0], rounds or 7, host_engine, timeout_s, also, chosen[1], numbers, gpus)
    refuse_existing(out, force)
    if not host_engine:
        need_cuda(
            "bench serving",
            f"run it on a GPU host; --host-engine tries {', '.join(HOST_LOADS)} on this CPU",
        )
    document, interrupted = _measure(plan, run_folder)
    deliver(KIND, document, print_serving_bench, out, as_json)
    raise typer.Exit(exit_code(document, interrupted))


def _refuse_ignored(options: dict[str, Any]) -> None:
    for option, value in options.items():
        if value is not None:
            raise UsageMistake(
                f"--host-engine leaves nothing to {option}: it is one round on a toy", f"leave {option} out"
            )


def _measure(plan: ServingPlan, run_folder: Path | None) -> tuple[dict[str, Any], bool]:
    from gemma4_repro.serving_bench.measure import run_plan
    from gemma4_triage.report.serving_bench_document import serving_bench_document

    return measure_with_servers(
        "bench-serving",
        run_folder,
        plan.host_engine,
        lambda folder: run_plan(plan, folder, say),
        lambda *facts: serving_bench_document(plan, *facts),
    )
