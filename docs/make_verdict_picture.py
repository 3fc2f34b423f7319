"""Draw the verdict of a finished `gemma4-triage repro` run as docs/verdict.svg, in the words of the command line.

    gemma4-triage repro e4b-trtllm --output runs/readme
    python docs/make_verdict_picture.py runs/readme/verdict.json

Nothing is run here: all of it comes from verdict.json. Give the path as it should look in the picture; dumps are named
relative to it.
"""

from __future__ import annotations

import argparse
import io
import re
import sys
from pathlib import Path

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.text import Text

from gemma4_triage.runs.record import ScenarioRun
from gemma4_triage.runs.record_file import decode_record
from gemma4_triage.runs.view import print_scenario

COLUMNS = 120
PICTURE = Path(__file__).with_name("verdict.svg")
# One generic family: a picture in a README must load nothing, and some renderers look at the first name only.
FONTS = "monospace"
# Rich stretches each text to its width in cells, so that this need not be exact.
FONT_ASPECT_RATIO = 0.602


def load_run(path: Path) -> ScenarioRun:
    """Return the record at `path`, as if the run's folder had been named as `path` names it."""
    text = path.read_text(encoding="utf-8")
    folder = decode_record(text.encode()).folder
    run = decode_record(text.replace(folder, str(path.parent)).encode())
    if not isinstance(run, ScenarioRun):
        sys.exit(f"{path} is not the verdict of a scenario")
    return run


def draw(run: ScenarioRun, command: str) -> str:
    """Return the terminal view of `run` below its command line, as one SVG document without outside references."""
    console = Console(
        record=True,
        width=COLUMNS,
        file=io.StringIO(),
        force_terminal=True,
        color_system="truecolor",
        markup=False,
        highlight=False,
        emoji=False,
    )
    console.print(Text(f"$ {command}", style="bold"))
    console.print()
    print_scenario(console, run)
    return console.export_svg(
        title="gemma4-triage", code_format=_without_outside_fonts(), font_aspect_ratio=FONT_ASPECT_RATIO
    )


def _without_outside_fonts() -> str:
    # The template is a format string, so its braces are doubled.
    local, removed = re.subn(r"@font-face \{\{.*?\}\}\s*", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)
    local, renamed = re.subn(r"font-family: Fira Code, monospace;", f"font-family: {FONTS};", local)
    local = local.replace("font-family: arial;", "font-family: sans-serif;")
    if not removed or not renamed or "url(" in local.replace("url(#", ""):
        raise RuntimeError("rich's SVG template has changed and still refers to fonts outside")
    return local


def main() -> None:
    """Read the verdict named on the command line and write the picture."""
    parser = argparse.ArgumentParser(description="Draw a finished run's verdict.")
    parser.add_argument("verdict", type=Path, help="a run's verdict.json")
    parser.add_argument("--output", type=Path, default=PICTURE)
    arguments = parser.parse_args()
    run = load_run(arguments.verdict)
    command = f"gemma4-triage repro {run.scenario} --output {run.folder}"
    svg = draw(run, command)
    arguments.output.write_text("".join(f"{line.rstrip()}\n" for line in svg.splitlines()), encoding="utf-8")
    print(f"Wrote {arguments.output}")


if __name__ == "__main__":
    main()
