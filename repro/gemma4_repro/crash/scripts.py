"""Writes repro/crash_repro: a script per cell, which says what it does and runs `gemma4-triage`.

python -m gemma4_repro.crash.scripts repro/crash_repro
"""

from __future__ import annotations

import shlex
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

from gemma4_repro.bench.server_arguments import command_words
from gemma4_repro.crash.cells import CELLS, Cell
from gemma4_repro.crash.expected import with_own_patches
from gemma4_repro.crash.loads import LOADS
from gemma4_repro.crash.machine import REFERENCES, Gpu, needs_of_model, obstacle
from gemma4_repro.crash.runner import REAL

_WIDTH = 100
_PORT = 30000


def script_name(cell: Cell) -> str:
    """Return the name of the cell's script."""
    return f"repro_{cell.id}.sh"


def script_text(cell: Cell) -> str:
    """Return the cell's script: all that it does as comments, and one command."""
    lines = [line for part in _parts(cell) for line in ["#", *part]]
    draft = " --draft-model DIR" if cell.mtp.drafts else ""
    usage = f"# {script_name(cell)} --model DIR{draft}   or, on a CPU: {script_name(cell)} --toy"
    command = f'exec gemma4-triage repro crash {cell.id} "$@"'
    return "\n".join(["#!/usr/bin/env bash", f"# {cell.title}.", usage, *lines, command, ""])


def _parts(cell: Cell) -> Iterator[list[str]]:
    draft = "DRAFT_MODEL" if cell.mtp.drafts else None
    words = ["gemma4-triage", "serve", "--patches", cell.patches(toy=False), *(["--debug", "1"] if cell.bounds else [])]
    words += ["--dir", f"RUN/{cell.id}/dumps", "--", *command_words(cell.server_arguments("MODEL", draft, _PORT))]
    yield ["# Server:", *_command(words)]
    first = LOADS[0]
    yield [
        f"# Client, load {first.id}:",
        *_wrapped(f"({first.published})"),
        *_command(["python", *first.client_words("MODEL", _PORT, first.size, f"RUN/{cell.id}/bench_{first.id}.jsonl")]),
    ]
    yield ["# Other loads, with --load ID or --load all:"] + [
        line
        for load in LOADS[1:]
        for line in _wrapped(f"{load.id}: {load.published}" + (f" (chosen: {load.chosen})" if load.chosen else ""))
    ]
    yield ["# Expected with these patches:"] + [line for gpu in REFERENCES for line in _wrapped(_expected(cell, gpu))]
    yield [
        f"# Stops when all is answered, the server or its client ends, no log grows for {REAL.stall_s:.0f} s,",
        f"# or after {REAL.start_s:.0f} s of start or {REAL.load_s:.0f} s of a load.",
        f"# Leaves RUN/{cell.id}/ (log.txt of the server, client_*.txt, bench_*.jsonl, dumps/),",
        "# RUN/verdict.json and RUN/TRIAGE_REPORT.md.",
    ]


def _expected(cell: Cell, gpu: Gpu) -> str:
    if reason := obstacle(cell, gpu, needs_of_model(cell.model)):
        return f"{gpu.sm}: cannot run: {reason}."
    found = with_own_patches(cell, gpu.device)
    return f"{gpu.sm}: {found.text}, because {found.why}. {found.measured[0].upper()}{found.measured[1:]}."


def _command(words: list[str]) -> list[str]:
    """Return shell lines as comments: broken before an option, they can be pasted without their `#`."""
    lines, line = [], ""
    for word in words:
        quoted = shlex.quote(word)
        if line and len(line) + len(quoted) > _WIDTH and word.startswith("-"):
            lines, line = [*lines, f"{line} \\"], f"  {quoted}"
        else:
            line = f"{line} {quoted}" if line else quoted
    return [f"#   {one}" for one in [*lines, line]]


def _wrapped(text: str) -> list[str]:
    return [f"#   {line}" for line in textwrap.wrap(text, _WIDTH, subsequent_indent="  ")]


def write_scripts(folder: Path) -> None:
    """Write every cell's script, executable, and remove scripts of cells that are no more."""
    names = {script_name(cell): script_text(cell) for cell in CELLS}
    for path in folder.glob("repro_*.sh"):
        if path.name not in names:
            path.unlink()
    for name, text in names.items():
        path = folder / name
        path.write_text(text, encoding="utf-8")
        path.chmod(0o755)


if __name__ == "__main__":
    write_scripts(Path(sys.argv[1]))
