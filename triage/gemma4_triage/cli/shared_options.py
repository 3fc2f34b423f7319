"""Options that several verbs take, each declared once."""

from pathlib import Path
from typing import Annotated

import typer

Output = Annotated[
    Path | None,
    typer.Option("--output", "-o", metavar="DIR", help="The run's folder, instead of one below the state directory."),
]
Force = Annotated[bool, typer.Option("--force", help="Write to --output even if it is not empty.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")]
