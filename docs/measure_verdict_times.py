"""Measures how long it takes from a dump or a log to a verdict, and writes docs/incidents.json and docs/incidents.md.

.venv/bin/python docs/measure_verdict_times.py

Every time is that of a whole process, from its start to its exit: `gemma4-triage diagnose` as a user types it, with
cached bytecode, as an installed package has it. `--table` only writes the table anew from the rows.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "support"))

from gemma4_repro.corpus.clean import CLEAN  # noqa: E402
from gemma4_repro.corpus.faults import FAULTS  # noqa: E402
from gemma4_triage.known_issues.catalog import known_issues  # noqa: E402
from gemma4_triage.report.known_matrix import MatrixRow, matrix  # noqa: E402
from known_causes import CAUSES, LOGS, SAMPLES  # noqa: E402

ROWS, TABLE = ROOT / "docs" / "incidents.json", ROOT / "docs" / "incidents.md"
COMMAND = "python docs/measure_verdict_times.py"
RUNS = 5
PROGRAM = Path(sys.executable).with_name("gemma4-triage")
HOMES = {"SGLang": "sgl-project/sglang", "TensorRT-LLM": "NVIDIA/TensorRT-LLM"}
PARTS = {
    "fault": "Faults of the corpus, from their dumps",
    "clean": "Clean loads of the corpus: nothing to find",
    "sample": "Sample dumps",
    "log": "Serving logs alone",
}
_VERSIONS = ("gemma4-triage", "numpy", "pydantic", "safetensors", "typer", "rich")


def cases() -> Iterator[dict[str, Any]]:
    """Yield what to measure: part, id, incident, reference, words of the command, expected rule or None."""
    dumps = "tests/data/corpus_dumps"
    for fault in FAULTS:
        words = ["diagnose", f"{dumps}/{fault.id}"]
        yield _case("fault", fault.id, fault.origin.reported, fault.origin.reference, words, CAUSES[fault.id])
    for clean in CLEAN:
        yield _case("clean", clean.id, clean.title, None, ["diagnose", f"{dumps}/{clean.id}"], None)
    for path in sorted(path for path in (ROOT / "dumps" / "samples").iterdir() if path.is_dir()):
        what = SAMPLES[path.name.partition(".")[0]]
        yield _case("sample", path.name, *what[:2], ["diagnose", f"dumps/samples/{path.name}"], what[2])
    for path in sorted((ROOT / "tests" / "data" / "logs").glob("*.log")):
        what = LOGS[path.stem]
        words = ["diagnose", "--log", f"tests/data/logs/{path.name}"]
        yield _case("log", path.stem, *what[:2], words, what[2])


def _case(
    part: str, name: str, incident: str, reference: str | None, words: list[str], expected: str | None
) -> dict[str, Any]:
    return {
        "part": part,
        "id": name,
        "incident": incident,
        "reference": reference,
        "words": words,
        "expected_rule": expected,
    }


def measured(case: Mapping[str, Any], environment: Mapping[str, str]) -> dict[str, Any]:
    """Return the row of one case. The verdict is that of one more run, with --json."""
    times, codes = [], set()
    for _ in range(RUNS):
        begin = time.perf_counter()
        done = _run(case["words"], environment)
        times.append(round(time.perf_counter() - begin, 4))
        codes.add(done.returncode)
    (code,) = codes
    document = json.loads(_run([*case["words"], "--json"], environment).stdout)
    expected = case["expected_rule"]
    found = findings_of(document, expected)
    rules = [finding["rule"] for finding in found]
    return {
        **{name: value for name, value in case.items() if name != "words"},
        "command": " ".join(["gemma4-triage", *case["words"]]),
        "wall_s": times,
        "median_s": statistics.median(times),
        "exit_code": code,
        "rules": rules,
        "confidence": _label(found[0]) if found else None,
        "verdict": found[0]["cause"] if found else None,
        # Where in the list the cause stands, from 1; 0: it is not there, though it should be; None: rightly nothing.
        "position": (rules.index(expected) + 1 if expected in rules else 0) if expected or rules else None,
    }


def _run(words: list[str], environment: Mapping[str, str]) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run([PROGRAM, *words], cwd=ROOT, env=dict(environment), capture_output=True, check=False)


def measure() -> dict[str, Any]:
    """Return the document: where it was measured, and a row per case."""
    with tempfile.TemporaryDirectory() as empty:
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("GEMMA4_", "SGLANG_"))}
        clean.pop("PYTHONDONTWRITEBYTECODE", None)
        # Nothing of this machine's own store, and bytecode of nobody else.
        environment = clean | {"SGLANG_TRTLLM_MHA_DEBUG_DIR": empty, "PYTHONPYCACHEPREFIX": f"{empty}/bytecode"}
        listed = list(cases())
        for part in PARTS:
            _run(next(case for case in listed if case["part"] == part)["words"], environment)
        load = os.getloadavg()[0]
        rows = []
        for case in listed:
            rows.append(measured(case, environment))
            print(f"{rows[-1]['median_s']:.2f} s  {case['id']}", file=sys.stderr)
    return {
        "schema_version": "1.0",
        "command": COMMAND,
        "date": datetime.now(UTC).date().isoformat(),
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "load_average_before": round(load, 2),
        "load_average_after": round(os.getloadavg()[0], 2),
        "runs": RUNS,
        "versions": {"python": platform.python_version()} | {name: version(name) for name in _VERSIONS},
        "rows": rows,
    }


def _cpu() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def markdown(document: Mapping[str, Any]) -> str:
    """docs/incidents.md, all of it."""
    rows = document["rows"]
    faults = [row for row in rows if row["part"] == "fault"]
    clean = [row for row in rows if row["part"] == "clean"]
    first = sum(row["position"] == 1 for row in faults)
    silent = sum(row["position"] is None for row in clean)
    times = [row["median_s"] for row in rows]
    versions = ", ".join(f"{name} {number}" for name, number in document["versions"].items())
    load = f"{document['load_average_before']} before and {document['load_average_after']} after"
    parts = "\n".join(_part(title, [row for row in rows if row["part"] == part]) for part, title in PARTS.items())
    return f"""# From evidence to verdict

Seconds from the start of the command to its exit, the median of {document["runs"]} runs of the whole process, start-up
included. {len(rows)} commands took {min(times):.2f} s to {max(times):.2f} s. Of {len(faults)} faults the right cause
came first for {first}; of {len(clean)} clean loads nothing was said about {silent}.

`{document["command"]}` wrote this page and its rows, [incidents.json](incidents.json), which also hold every run's time
and the cause in words; no number here is typed. {document["date"]}, {document["cpu"]}, {document["cores"]} cores, load
average {load}; {versions}.

The dumps are of real runs of the engine, trimmed by `tests/tools/trim_corpus_dumps.py` to one per signature; each
fault is that of the public issue that is named. How many steps a probe needs before it writes its dump stands in
[corpus_matrix.json](corpus_matrix.json). Which cause is the right one stands in `tests/support/known_causes.py`.
*right cause* is the place that it has in the ranking.

{parts}
{_known()}"""


def _known() -> str:
    """Return the section of known issues, of the records as they are now: `known check` says the same."""
    rows = matrix(known_issues())
    good = sum(row.good for row in rows)
    head = "| known issue | threads | topic | fixed | its own log | logs it must leave alone | other records' logs |"
    lines = [
        "## Known issues",
        "",
        f"{len(rows)} records, of which {good} match their own log and no other. A log of a record is a minimal",
        "example; `gemma4-triage known show ID` prints it.",
        "",
        head,
        "|---|---|---|---|---|---|---|",
        *(f"| {' | '.join(_known_cells(row, len(rows)))} |" for row in rows),
    ]
    return "\n".join(lines) + "\n"


def _known_cells(row: MatrixRow, records: int) -> tuple[str, ...]:
    issue, others = row.issue, len(row.issue.other_logs)
    return (
        f"`{issue.id}`",
        ", ".join(_link(f"SGLang {thread}") for thread in issue.threads),
        issue.topic,
        issue.fix or "not known",
        "matches" if row.matches_own else "no match",
        f"silent on {others - len(row.fits_wrongly)} of {others}",
        f"silent on {records - 1 - len(row.fits_others)} of {records - 1}",
    )


def _part(title: str, rows: list[Mapping[str, Any]]) -> str:
    head = "| incident | public issue | command | seconds | exit | verdict | right cause |"
    lines = [f"## {title}", "", head, "|---|---|---|---|---|---|---|"]
    lines += [f"| {' | '.join(_cells(row))} |" for row in rows]
    return "\n".join(lines) + "\n"


def findings_of(document: Mapping[str, Any], expected: str | None) -> list[Mapping[str, Any]]:
    """Return a diagnosis' findings. Each launch of this release has its notes: one counts only where it is expected."""
    found = [finding for incident in document["incidents"] for finding in incident["findings"]]
    return [finding for finding in found if finding["kind"] != "note" or finding["rule"] == expected]


def _label(finding: Mapping[str, Any]) -> str:
    return "note" if finding["kind"] == "note" else finding["confidence"]


def _cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    verdict = f"`{row['rules'][0]}`, {row['confidence']}" if row["rules"] else "nothing wrong"
    return (
        row["incident"],
        _link(row["reference"]),
        f"`{row['command'].removeprefix('gemma4-triage ')}`",
        f"{row['median_s']:.2f}",
        str(row["exit_code"]),
        verdict,
        _right(row),
    )


def _right(row: Mapping[str, Any]) -> str:
    if row["position"] is None:
        return "yes, none"
    if row["position"] == 0:
        return "no"
    return f"{row['position']} of {len(row['rules'])}"


def _link(reference: str | None) -> str:
    if reference is None:
        return ""
    project, _, number = reference.rpartition(" ")
    return f"[{reference}](https://github.com/{HOMES[project]}/issues/{number})"


def main() -> None:
    parser = argparse.ArgumentParser(description="Measures the time from evidence to verdict.")
    parser.add_argument("--table", action="store_true", help="measure nothing; write the table from the rows")
    if not parser.parse_args().table:
        ROWS.write_text(json.dumps(measure(), indent=1) + "\n", encoding="utf-8")
    TABLE.write_text(markdown(json.loads(ROWS.read_text(encoding="utf-8"))), encoding="utf-8")
    print(f"Wrote {ROWS.relative_to(ROOT)} and {TABLE.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
