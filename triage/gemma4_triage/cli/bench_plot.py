"""`gemma4-triage bench plot`: rows of `bench probes`, `bench kernels` or `bench serving` as an SVG."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from gemma4_triage.errors import UsageMistake
from gemma4_triage.input_file import read_input
from gemma4_triage.output_file import refuse_existing, refuse_other_than_svg, write_text

_PROBES, _KERNELS, _SERVING = "bench-probes", "bench-kernels", "bench-serving"
_ALIKE = ("kind", "load", "device", "versions")
_WRITER = "gemma4-triage bench probes --output writes what is drawn, and bench kernels and bench serving --output"


def plot(
    rows: Annotated[
        list[Path],
        typer.Argument(metavar="ROWS.json", help="What bench probes, kernels or serving wrote with --output."),
    ],
    out: Annotated[Path, typer.Option("--output", "-o", metavar="X.svg", help="The picture.")],
    force: Annotated[bool, typer.Option("--force", help="Overwrite --output.")] = False,
) -> None:
    """Draw what a bench measured: steps of probes, times of kernels, or a load on each server.

    For example: gemma4-triage bench plot mtp_off.json -o probes.svg

    Several files of one kind, one device and one set of versions are drawn as one, for example MTP on and off, or one
    model each. Rows of a smoke run on the host engine are refused.
    """
    refuse_existing(out, force)
    refuse_other_than_svg(out)
    documents = [_read(path) for path in rows]
    about = {json.dumps([one.get(name) for name in _ALIKE], sort_keys=True) for one in documents}
    if len(about) > 1:
        raise UsageMistake(
            "these files are of different devices or versions, or of different benches or loads",
            "draw each of them on its own",
        )
    try:
        picture = _draw(documents)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        what = f"{', '.join(map(str, rows))}: rows are not as {_verb(documents[0])} writes them: {_lacks(error)}"
        raise UsageMistake(what, _WRITER) from error
    write_text(out, picture)


def _draw(documents: Sequence[dict[str, Any]]) -> str:
    if documents[0]["kind"] == _KERNELS:
        from gemma4_triage.report.kernel_bench_plot import draw_kernels

        return draw_kernels(documents)
    if documents[0]["kind"] == _SERVING:
        from gemma4_triage.report.serving_bench_plot import draw_serving

        return draw_serving(documents)
    from gemma4_triage.report.bench_plot import draw

    return draw(list(documents))


def _verb(document: dict[str, Any]) -> str:
    return document["kind"].replace("-", " ")


def _lacks(error: Exception) -> str:
    if isinstance(error, OSError):
        return error.strerror or str(error)
    return f"it lacks {error}" if isinstance(error, KeyError) else str(error)


def _read(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(read_input(path))
        if "kind" not in document and isinstance(document.get("op"), str):
            of = f"rows of the op {document['op'][:40]!r} by itself, as a script of kernels/bench writes them"
            raise UsageMistake(f"{path} holds {of}", f"they are not drawn; {_WRITER}")
        kind, found = document["kind"], document["rows"]
        drawn = kind in (_PROBES, _KERNELS, _SERVING) and bool(found)
        measurement = kind not in (_PROBES, _SERVING) or document["measurement"]
        # Which device, and which versions: rows of different ones are not drawn together.
        _ = document["versions"]
        if not isinstance(document["device"], str):
            raise TypeError("its device is no text")
    except (OSError, ValueError, AttributeError, KeyError, TypeError, RecursionError) as error:
        raise UsageMistake(f"{path} cannot be read as rows: {_lacks(error)}", _WRITER) from error
    if not drawn:
        raise UsageMistake(f"{path} holds no rows of bench probes, kernels or serving", _WRITER)
    if not measurement:
        raise UsageMistake(
            f"{path} is of a smoke run on the host engine, which is no measurement", "measure on a GPU host"
        )
    return document
