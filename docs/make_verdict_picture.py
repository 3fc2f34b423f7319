"""Draw the verdict of a finished `gemma4-triage repro` run as docs/verdict.svg, in the words of the command line.

    gemma4-triage repro e4b-trtllm --output runs/readme
    python docs/make_verdict_picture.py runs/readme/verdict.json

Nothing is run here: the checks come from verdict.json, the root cause from the dump that lies beside it. Give the path
as it should look in the picture; dumps are named relative to it.
"""

from __future__ import annotations

import argparse
import io
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.text import Text

from gemma4_repro.catalog import find_scenario
from gemma4_repro.expectation import Check, Status
from gemma4_repro.outcome import Ending, Outcome
from gemma4_repro.runner import Run
from gemma4_repro.scenario import Scenario
from gemma4_repro.verdict import ArmVerdict
from gemma4_triage.report.repro_view import print_run

COLUMNS = 120
PICTURE = Path(__file__).with_name("verdict.svg")
# One generic family: a picture in a README must load nothing, and some renderers look at the first name only.
FONTS = "monospace"
# Rich stretches each text to its width in cells, so that this need not be exact.
FONT_ASPECT_RATIO = 0.602


def load_run(path: Path) -> Run:
    """The run that wrote `path`, as far as its view needs it; files are looked for beside `path`."""
    document = json.loads(path.read_text(encoding="utf-8"))
    scenario = find_scenario(document["scenario"])
    verdicts = tuple(_verdict(scenario, arm, path.parent) for arm in document["arms"])
    return Run(
        scenario, path.parent, document["sglang_version"], document["duration_s"], document["import_s"], verdicts
    )


def draw(run: Run, command: str) -> str:
    """The terminal view of `run` below its command line, as one SVG document without outside references."""
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
    print_run(console, run)
    return console.export_svg(
        title="gemma4-triage", code_format=_without_outside_fonts(), font_aspect_ratio=FONT_ASPECT_RATIO
    )


def _verdict(scenario: Scenario, arm: Mapping[str, Any], run_folder: Path) -> ArmVerdict:
    outcome = Outcome(
        arm=arm["id"],
        ending=Ending(arm["ending"]),
        folder=run_folder / arm["id"],
        duration_s=arm["duration_s"],
        exit_code=arm["exit_code"],
        signal_name=arm["signal"],
        raised=(),
        result=None,
        problem=arm["problem"],
    )
    checks = [Check(check["expected"], check["observed"], Status(check["status"])) for check in arm["checks"]]
    # The document keeps an arm's numbers together; the view puts them together anyway.
    checks[0] = Check(checks[0].expected, checks[0].observed, checks[0].status, arm["numbers"])
    return ArmVerdict(scenario.arm(arm["id"]), outcome, tuple(checks))


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
    command = f"gemma4-triage repro {run.scenario.id} --output {run.folder}"
    svg = draw(run, command)
    arguments.output.write_text("".join(f"{line.rstrip()}\n" for line in svg.splitlines()), encoding="utf-8")
    print(f"Wrote {arguments.output}")


if __name__ == "__main__":
    main()
