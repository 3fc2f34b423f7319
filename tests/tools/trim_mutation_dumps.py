"""Keep dumps of a mutation: `python tests/tools/trim_mutation_dumps.py RUN NUMBER NAME`.

RUN is the folder of `gemma4-triage repro mutations --output RUN`, NUMBER one of its mutations. What the first audit
that found something wrote, else the first dump, goes to tests/data/mutation_dumps/NAME, trimmed as the corpus' dumps
are.
"""

import sys
from pathlib import Path

from gemma4_dumps.manifest_file import load_manifest
from gemma4_dumps.store import DumpStore
from trim_corpus_dumps import copy_dump

TO = Path(__file__).parents[1] / "data" / "mutation_dumps"


def keep(run: Path, number: int, name: str) -> None:
    """Copy the dumps of the first step that has any."""
    entries = [one for one in DumpStore(run / f"run-{number:04d}" / "dumps").list() if one.manifest is not None]
    first = min(entries, key=lambda one: (load_manifest(one.path).step or float("inf"), one.created_utc))
    step, rule = load_manifest(first.path).step, load_manifest(first.path).rule
    for entry in entries:
        manifest = load_manifest(entry.path)
        if (manifest.step, manifest.rule) == (step, rule):
            copy_dump(entry.path, TO / name / entry.dump_id, name, "mutations")


if __name__ == "__main__":
    keep(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
