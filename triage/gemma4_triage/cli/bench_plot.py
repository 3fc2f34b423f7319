"""`gemma4-triage bench plot`: rows of `bench probes` as an SVG."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from gemma4_triage.cli.output_file import refuse_existing, refuse_other_than_svg, write_text
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
    refuse_other_than_svg(out)
    documents = [_read(path) for path in rows]
    about = {(document["device"], json.dumps(document["versions"], sort_keys=True)) for document in documents}
    if len(about) > 1:
        raise UsageMistake("these files are of different devices or versions", "draw each of them on its own")
    try:
        picture = draw(documents)
    except (KeyError, TypeError, ValueError) as error:
        what = f"{', '.join(map(str, rows))}: rows are not as bench probes writes them: {_lacks(error)}"
        raise UsageMistake(what, _WRITER) from error
    write_text(out, picture)


_WRITER = "gemma4-triage bench probes --out writes them"


def _lacks(error: Exception) -> str:
    return f"it lacks {error}" if isinstance(error, KeyError) else str(error)


def _read(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        kind, measurement, found = document["kind"], document["measurement"], document["rows"]
        # Which device, and which versions: rows of different ones are not drawn together.
        _ = document["device"], document["versions"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageMistake(f"{path} cannot be read as rows: {_lacks(error)}", _WRITER) from error
    if kind != "bench-probes" or not found:
        raise UsageMistake(f"{path} holds no rows of bench probes", _WRITER)
    if not measurement:
        raise UsageMistake(
            f"{path} is of a smoke run on the host engine, which is no measurement", "measure on a GPU host"
        )
    return document
