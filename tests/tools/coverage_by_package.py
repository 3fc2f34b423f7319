"""Print how much of each package's branches and lines a measured test run reached.

make coverage                                    # everything of make test-all, under coverage
python tests/tools/coverage_by_package.py FILE   # of data that is there already
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

from rich.console import Console
from rich.table import Table


def by_package(document: dict) -> dict[str, dict[str, int]]:
    """Add up the files of each package.

    Args:
        document: What `coverage json` writes.

    Returns:
        By package: `covered_lines`, `num_statements`, `covered_branches` and `num_branches`.
    """
    sums: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for name, found in document["files"].items():
        package = next((part for part in Path(name).parts if part.startswith("gemma4_")), "elsewhere")
        for field in ("covered_lines", "num_statements", "covered_branches", "num_branches"):
            sums[package][field] += found["summary"][field]
    return sums


def main() -> None:
    """Read the data file and print a row for each package."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="the data file of `coverage combine`")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        written = Path(folder) / "coverage.json"
        command = [sys.executable, "-m", "coverage", "json", "--quiet", "--ignore-errors"]
        subprocess.run([*command, f"--data-file={arguments.data}", "-o", written], check=True)
        sums = by_package(json.loads(written.read_text(encoding="utf-8")))
    if arguments.json:
        print(json.dumps(sums, indent=1))
        return
    table = Table("package", "lines", "of", "%", "branches", "of", "%")
    for package, found in sorted(sums.items()):
        row = [package]
        for covered, total in (("covered_lines", "num_statements"), ("covered_branches", "num_branches")):
            row += [str(found[covered]), str(found[total]), f"{100 * found[covered] / max(1, found[total]):.1f}"]
        table.add_row(*row)
    Console().print(table)


if __name__ == "__main__":
    main()
