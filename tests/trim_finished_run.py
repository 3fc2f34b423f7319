"""Make tests/data/finished_runs/NAME from a run's folder: `python tests/trim_finished_run.py RUN NAME`.

RUN is the folder of `gemma4-triage repro ... --output RUN`, or of `diff backends` or `diff patches`. Kept:
verdict.json, of each arm, side or case the dumps, trimmed as `trim_corpus_dumps` does it, and of arms and sides the
log, cut as `cut_serving_log` does it. The run's folder is called runs/NAME in all of them, and this checkout has no
path.
"""

import json
import shutil
import sys
from pathlib import Path

from cut_serving_log import cut
from trim_corpus_dumps import trimmed

TO = Path(__file__).parent / "data" / "finished_runs"
CHECKOUT = Path(__file__).parents[1]


def main(run: Path, name: str) -> None:
    to = TO / name
    shutil.rmtree(to, ignore_errors=True)
    to.mkdir(parents=True)

    def write(path: Path, text: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.replace(str(run), f"runs/{name}").replace(f"{CHECKOUT}/", ""))

    verdict = json.loads((run / "verdict.json").read_text())
    write(to / "verdict.json", json.dumps(verdict, indent=1) + "\n")
    for part in sorted(path for path in run.iterdir() if path.is_dir()):
        if verdict["kind"] != "corpus":
            write(to / part.name / "log.txt", cut((part / "log.txt").read_text(errors="replace")))
        for dump in sorted(path for path in (part / "dumps").iterdir() if (path / "manifest.json").exists()):
            for file in ("tensors.safetensors", "events.jsonl"):
                (to / part.name / "dumps" / dump.name).mkdir(parents=True, exist_ok=True)
                shutil.copyfile(dump / file, to / part.name / "dumps" / dump.name / file)
            manifest = json.loads((dump / "manifest.json").read_text())
            manifest["guards"] = trimmed(manifest["guards"], part.name)
            write(to / part.name / "dumps" / dump.name / "manifest.json", json.dumps(manifest, indent=1) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve(), sys.argv[2])
