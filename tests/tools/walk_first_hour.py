"""Walks the three needs of a newcomer by the README alone, in a fresh base environment, and writes down the times.

Usage: python tests/tools/walk_first_hour.py [--runtime .venv-0.5.13.post1] [--output docs/first_hour.md]

What is run are the lines of the README's own blocks, in a copy of what git has, so that nothing of this checkout helps.
The line that compares patches needs SGLang, and is run in the environment that --runtime names, as `make setup`
makes it for SGLang 0.5.13.post1; what serves a real model is left out.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import textwrap
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NEEDS = {
    "Install": "Install, on a laptop",
    "My server crashed": "A crashed server's log",
    "I was given a dump": "Somebody's dump",
    "I want it faster": "The faster runtime",
}
LEFT_OUT = ("gemma4-triage serve", "gemma4-triage dumps export latest")
NEED_SGLANG = "gemma4-triage diff patches"


@dataclass(frozen=True)
class Step:
    """One line of the README that was run.

    Attributes:
        need: the section that it is from.
        line: without its comment.
        code: what it ended with.
        seconds: of wall time.
    """

    need: str
    line: str
    code: int
    seconds: float


def commands(readme: str) -> dict[str, list[str]]:
    """Return the lines of the README that are walked, by section; of the ways to install the first."""
    found: dict[str, list[str]] = {}
    for section in readme.split("\n## ")[1:]:
        title, _, body = section.partition("\n")
        if title not in NEEDS:
            continue
        blocks = body.split("```")[1::2]
        lines = [
            line.split("  #")[0].strip()
            for block in blocks[: 1 if title == "Install" else None]
            for line in block.splitlines()
        ]
        kept = [line for line in lines if line and not line.startswith(LEFT_OUT) and line != "gemma4-triage diagnose"]
        found[NEEDS[title]] = kept
    return found


def walk(folder: Path, runtime: Path | None) -> list[Step]:
    """Run every line in a copy of what git has, one shell line each, in the environment that the first lines make.

    Args:
        folder: where the copy is made.
        runtime: the environment with SGLang; without it no line is run that needs one.
    """
    names = (
        subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout.decode().split("\0")
    )
    clone = folder / "clone"
    for name in filter(None, names):
        (clone / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, clone / name)
    environment = {"PATH": f"{Path(sys.executable).resolve().parent}:/usr/bin:/bin", "HOME": str(folder)}
    environment |= {name: os.environ[name] for name in ("PIP_INDEX_URL", "SSL_CERT_FILE") if name in os.environ}
    steps = []
    for need, lines in commands((ROOT / "README.md").read_text()).items():
        for line in lines:
            before = "" if line.startswith("python3 -m venv") else ". laptop/bin/activate && "
            if line.startswith(NEED_SGLANG):
                if runtime is None:
                    continue
                before = f". {shlex.quote(str(runtime.resolve()))}/bin/activate && "
            begin = time.monotonic()
            done = subprocess.run(
                ["bash", "-c", before + line], cwd=clone, env=environment, capture_output=True, text=True
            )
            steps.append(Step(need, line, done.returncode, time.monotonic() - begin))
            print(f"{steps[-1].seconds:6.1f} s, exit code {done.returncode}: {line}", flush=True)
            if done.returncode not in (0, 1):
                print(done.stderr[-2000:])
    return steps


def size_mb(folder: Path) -> int:
    """Return what `du -sm` says of a folder."""
    return int(subprocess.run(["du", "-sm", folder], capture_output=True, text=True, check=True).stdout.split()[0])


def page(steps: list[Step], laptop_mb: int, load: float) -> str:
    """Return the walk as a page of the documentation.

    Args:
        steps: all that was run.
        laptop_mb: the size of the environment that was made.
        load: the load average of the machine before the walk.
    """
    about = (
        "Three needs, by the lines of the [README](../README.md) alone, in a fresh base environment. Made by "
        "`python tests/tools/walk_first_hour.py --runtime .venv-0.5.13.post1 --output docs/first_hour.md` on "
        f"{os.cpu_count()} cores with Python {platform.python_version()}; wall time, with what pip fetches, on a "
        f"machine with a load average of {load:.1f} before it began. Exit code 1 is a finding. Lines that serve a real "
        "model or need its dumps are left out. The environment takes "
        f"{laptop_mb} MB (`du -sm`), with pip and numpy. `diff patches` runs in that of "
        "`make setup RELEASE=0.5.13.post1`, which has the SGLang that the README installs."
    )
    # Code that a line break parts could not be pasted.
    whole = re.sub(r"`[^`]*`", lambda code: code[0].replace(" ", "\0"), about)
    text = "# The first hour, walked\n\n" + textwrap.fill(whole, 119, break_on_hyphens=False).replace("\0", " ") + "\n"
    for need in dict.fromkeys(step.need for step in steps):
        rows = [step for step in steps if step.need == need]
        text += f"\n## {need}\n\n| line | exit code | seconds |\n|---|---|---|\n"
        text += "".join(f"| `{row.line}` | {row.code} | {row.seconds:.1f} |\n" for row in rows)
        text += f"\n{sum(row.seconds for row in rows):.0f} s together.\n"
    return text


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--output", type=Path, help="write the page there")
    parser.add_argument("--runtime", type=Path, help="an environment with SGLang, for the line that needs it")
    wanted = parser.parse_args()
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder:
        steps = walk(Path(folder), wanted.runtime)
        text = page(steps, size_mb(Path(folder) / "clone" / "laptop"), load)
    if wanted.output:
        wanted.output.write_text(text)
    return int(any(step.code not in (0, 1) for step in steps))


if __name__ == "__main__":
    sys.exit(main())
