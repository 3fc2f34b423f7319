"""`gemma4-triage bench`: measure what the probes cost, and draw it; measure our kernels, alone and in a step."""

import typer

from gemma4_triage.cli.bench_kernels import kernels
from gemma4_triage.cli.bench_plot import plot
from gemma4_triage.cli.bench_probes import probes
from gemma4_triage.cli.bench_step import step


def register(app: typer.Typer) -> None:
    """Add the `bench` verbs to the application."""
    verbs = typer.Typer(help="Measure on a GPU: the probes' cost, our kernels, a whole step.", no_args_is_help=True)
    verbs.command("probes")(probes)
    verbs.command("plot")(plot)
    verbs.command("kernels")(kernels)
    verbs.command("step")(step)
    app.add_typer(verbs, name="bench")
