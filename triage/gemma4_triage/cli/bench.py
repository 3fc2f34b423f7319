"""`gemma4-triage bench`: measure the probes, our kernels, a step and whole loads, and draw it."""

import typer

from gemma4_triage.cli.bench_kernels import kernels
from gemma4_triage.cli.bench_plot import plot
from gemma4_triage.cli.bench_probes import probes
from gemma4_triage.cli.bench_serving import serving
from gemma4_triage.cli.bench_step import step


def register(app: typer.Typer) -> None:
    """Add the `bench` verbs to the application."""
    verbs = typer.Typer(
        help="Measure on a GPU: the probes, our kernels, a step, whole loads.\n\n"
        "For example: gemma4-triage bench serving prefill --model e2b",
        no_args_is_help=True,
    )
    verbs.command("probes")(probes)
    verbs.command("plot")(plot)
    verbs.command("kernels")(kernels)
    verbs.command("step")(step)
    verbs.command("serving")(serving)
    app.add_typer(verbs, name="bench")
