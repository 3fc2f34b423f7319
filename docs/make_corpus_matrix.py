"""Writes docs/corpus_matrix.json from a finished run of the corpus: what was measured, without the run's own paths.

A run on another release than the one that the patches were written for goes to a file with the release in its name.

gemma4-triage repro corpus --unguarded --output runs/corpus
.venv/bin/python docs/make_corpus_matrix.py runs/corpus/verdict.json
"""

import json
import sys
from pathlib import Path

from gemma4_runtime.releases import BASE

COMMAND = "gemma4-triage repro corpus --unguarded"
_PATHS = ("folder", "path", "root_cause")


def without_paths(value: object) -> object:
    """Return the same document without the fields that say where on one machine something lay."""
    if isinstance(value, dict):
        return {name: without_paths(part) for name, part in value.items() if name not in _PATHS}
    if isinstance(value, list):
        return [without_paths(part) for part in value]
    return value.split(" [dump: ")[0] if isinstance(value, str) else value


def main(verdict: str) -> None:
    document = json.loads(Path(verdict).read_text(encoding="utf-8"))
    if document.get("kind") != "corpus":
        sys.exit(f"{verdict} is not the verdict of a corpus run")
    kept = without_paths(document)
    assert isinstance(kept, dict)
    release = document["sglang_version"]
    output = Path(__file__).with_name("corpus_matrix.json" if release == BASE else f"corpus_matrix_{release}.json")
    output.write_text(json.dumps({"command": COMMAND} | kept, indent=1) + "\n", encoding="utf-8")
    print(f"Wrote {output}")


if __name__ == "__main__":
    main(*sys.argv[1:])
