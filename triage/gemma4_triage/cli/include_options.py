"""Options that `serve` and `repro` share: what dumps hold of the requests themselves."""

from typing import Annotated

import typer

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
