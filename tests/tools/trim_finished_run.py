"""Make tests/data/finished_runs/NAME from a run's folder: `python tests/tools/trim_finished_run.py RUN NAME`.

RUN is the folder of `gemma4-triage repro ... --output RUN`, or of `diff backends` or `diff patches`. Kept:
verdict.json, of each arm, side or case the dumps, trimmed as `trim_corpus_dumps` does it, and of arms and sides the
log, cut as `cut_serving_log` does it. The run's folder is called runs/NAME in all of them, and this checkout has no
path.

A run of `repro` that was made with --keep goes to tests/data/recorded_runs/NAME instead, with all that its verdict was
made of, so that `recorded_engine` can play it back: results, drafts, times of steps, the tallies of leak audits.
"""

import json
import shutil
import sys
from pathlib import Path

from cut_serving_log import cut
from gemma4_dumps.manifest_file import SEAL, seal_of
from trim_corpus_dumps import trimmed

DATA = Path(__file__).parents[1] / "data"
RECORDED = ("result.json", "drafts.jsonl", "steps.txt", "phase.txt")
CHECKOUT = Path(__file__).parents[2]


def main(run: Path, name: str) -> None:
    recorded = any(run.glob("*/request.json"))
    to = DATA / ("recorded_runs" if recorded else "finished_runs") / name
    shutil.rmtree(to, ignore_errors=True)
    to.mkdir(parents=True)

    def write(path: Path, text: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        # The environment first: it may lie below the checkout.
        for found, said in ((str(run), f"runs/{name}"), (sys.prefix, ".venv"), (f"{CHECKOUT}/", "")):
            text = text.replace(found, said)
        path.write_text(text)

    # `audit --live` writes none.
    kind = None
    if (run / "verdict.json").exists():
        verdict = json.loads((run / "verdict.json").read_text())
        kind = verdict["kind"]
        write(to / "verdict.json", json.dumps(verdict, indent=1) + "\n")
    for part in sorted(path for path in run.iterdir() if path.is_dir()):
        if recorded or kind != "corpus":
            write(to / part.name / "log.txt", cut((part / "log.txt").read_text(errors="replace")))
        kept = [part / name for name in RECORDED] + sorted((part / "dumps" / "audits").glob("*.json"))
        for file in kept if recorded else ():
            if file.exists():
                write(to / part.name / file.relative_to(part), file.read_text())
        for dump in sorted(path for path in (part / "dumps").iterdir() if (path / "manifest.json").exists()):
            for file in ("tensors.safetensors", "events.jsonl"):
                (to / part.name / "dumps" / dump.name).mkdir(parents=True, exist_ok=True)
                shutil.copyfile(dump / file, to / part.name / "dumps" / dump.name / file)
            manifest = json.loads((dump / "manifest.json").read_text())
            manifest["guards"] = trimmed(manifest["guards"], part.name)
            if SEAL in manifest:
                manifest[SEAL] = seal_of(manifest)
            write(to / part.name / "dumps" / dump.name / "manifest.json", json.dumps(manifest, indent=1) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve(), sys.argv[2])
