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
IncludeKv = Annotated[
    bool,
    typer.Option(
        "--include-kv",
        help="Dumps of page-table hold keys and values of the rows concerned: GEMMA4_TRIAGE_INCLUDE. Confidential.",
    ),
]
IncludeTokens = Annotated[
    bool,
    typer.Option(
        "--include-tokens",
        help="Dumps of page-table hold the token ids of these requests: GEMMA4_TRIAGE_INCLUDE. Confidential.",
    ),
]


def include_value(kv: bool, tokens: bool) -> str | None:
    """Return the variable's value; None if nothing was asked for."""
    return ",".join(word for word, asked in (("kv", kv), ("tokens", tokens)) if asked) or None
