"""`gemma4-triage bench plot`: rows of `bench probes` as an SVG."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from gemma4_triage.cli.output_file import refuse_existing, write_text
from gemma4_triage.errors import UsageMistake


def plot(
    rows: Annotated[list[Path], typer.Argument(metavar="ROWS.json...", help="What bench probes wrote with --out.")],
    out: Annotated[Path, typer.Option("--out", metavar="X.svg", help="The picture.")],
    force: Annotated[bool, typer.Option("--force", help="Overwrite --out.")] = False,
) -> None:
    """Draw step times against SGLang without the plugin, per MTP setting and batch.

    Several files of one device and one set of versions are drawn as one, for example MTP on and off. Rows of a smoke
    run on the host engine are refused.
    """
    from gemma4_triage.report.bench_plot import draw

    refuse_existing(out, force)
    documents = [_read(path) for path in rows]
    about = {(document["device"], json.dumps(document["versions"], sort_keys=True)) for document in documents}
    if len(about) > 1:
        raise UsageMistake("these files are of different devices or versions", "draw each of them on its own")
    write_text(out, draw(documents))


def _read(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        kind, measurement, found = document["kind"], document["measurement"], document["rows"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        what = f"{path} cannot be read as rows: {error!r}"
        raise UsageMistake(what, "gemma4-triage bench probes --out writes them") from error
    if kind != "bench-probes" or not found:
        raise UsageMistake(f"{path} holds no rows of bench probes", "gemma4-triage bench probes --out writes them")
    if not measurement:
        raise UsageMistake(
            f"{path} is of a smoke run on the host engine, which is no measurement", "measure on a GPU host"
        )
    return document
