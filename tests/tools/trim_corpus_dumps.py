"""Make tests/data/corpus_dumps from a run of the corpus: `python tests/tools/trim_corpus_dumps.py RUN`.

RUN is the folder of `gemma4-triage repro corpus --output RUN`.

Kept per case: the first dump of each signature, and where no dump is, the guard manifests and leak ledgers. Left out of
a manifest: titles and targets of patches, stand-ins of the host engine, the second copy of the versions, the run's
folder, the interpreter's. Everything else is as the server wrote it.
"""

import json
import re
import shutil
import sys
from collections import Counter
from pathlib import Path

from gemma4_dumps.manifest_file import SEAL, seal_of, signature_of
from gemma4_dumps.store import DumpStore

TO = Path(__file__).parents[1] / "data" / "corpus_dumps"
# One case keeps a repetition, and the manifests of its other processes, for the grouping.
WHOLE = "swa-state-stale"


def trim(run: Path, to: Path) -> None:
    """Replace the folder `to` by what is kept of <case>/dumps of each case of `run`."""
    shutil.rmtree(to, ignore_errors=True)
    for case in sorted(path for path in run.iterdir() if (path / "dumps").is_dir()):
        seen = Counter()
        for entry in reversed(DumpStore(case / "dumps").list()):
            assert entry.manifest is not None, entry.problem
            seen[signature_of(entry.manifest)] += 1
            if seen[signature_of(entry.manifest)] <= (2 if case.name == WHOLE else 1):
                copy_dump(entry.path, to / case.name / entry.dump_id, case.name)
        if not seen or case.name == WHOLE:
            for path in sorted((case / "dumps" / "guards").glob("*.json")):
                _write(to / case.name / "guards" / path.name, trimmed(json.loads(path.read_text()), case.name))
        if not seen:
            for path in sorted((case / "dumps" / "audits").glob("*.json")):
                _write(to / case.name / "audits" / path.name, json.loads(path.read_text()))


def copy_dump(dump: Path, to: Path, case: str, kind: str = "corpus") -> None:
    """Copy a dump, trimmed. kind: of the run that wrote it."""
    to.mkdir(parents=True)
    for name in ("tensors.safetensors", "events.jsonl"):
        shutil.copyfile(dump / name, to / name)
    # Neither where the interpreter, the checkout nor the run was.
    written = re.sub(r'[^\s"=]*/(repro/toys/|sglang/launch_server)', r"\1", (dump / "manifest.json").read_text())
    manifest = json.loads(written)
    manifest["guards"] = trimmed(manifest["guards"], case, kind)
    command = re.sub(r"PYTHONPATH=\S+ ", "", manifest["repeat_command"].replace(sys.executable, "python"))
    folder = f"SGLANG_TRTLLM_MHA_DEBUG_DIR=runs/{kind}/{case}/dumps"
    manifest["repeat_command"] = re.sub(r"SGLANG_TRTLLM_MHA_DEBUG_DIR=\S+", folder, command)
    _write(to / "manifest.json", manifest)


def trimmed(guards: dict, case: str, kind: str = "corpus") -> dict:
    """Return a guard manifest without what no test reads, and with the path of a run in the user's folder."""
    guards["patches"] = [
        {name: value for name, value in row.items() if name not in ("title", "targets")}
        for row in guards["patches"]
        if row["kind"] != "host leaf"
    ]
    guards["settings"]["dump_dir"] = f"runs/{kind}/{case}/dumps"
    return {name: value for name, value in guards.items() if name != "versions"}


def _write(path: Path, fields: dict) -> None:
    if SEAL in fields:
        fields = fields | {SEAL: seal_of(fields)}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(fields, indent=1) + "\n")


if __name__ == "__main__":
    trim(Path(sys.argv[1]), TO)
