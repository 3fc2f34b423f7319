"""`gemma4-triage bench`: measure what the probes cost, and draw it."""

import typer

from gemma4_triage.cli.bench_plot import plot
from gemma4_triage.cli.bench_probes import probes


def register(app: typer.Typer) -> None:
    """Add the `bench` verbs to the application."""
    verbs = typer.Typer(help="Measure what the probes cost on a GPU, and draw it.", no_args_is_help=True)
    verbs.command("probes")(probes)
    verbs.command("plot")(plot)
    app.add_typer(verbs, name="bench")
