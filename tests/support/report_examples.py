"""Reports for the tests: of finished runs, of the sample dumps, and of dumps whose every string is hostile."""

import dataclasses
from pathlib import Path

import numpy as np

from dump_examples import seed_bug_draft
from gemma4_dumps.draft import DumpDraft, TensorPayload
from gemma4_dumps.schema import Layer, Offence, Provenance
from gemma4_dumps.store import DumpStore
from gemma4_triage.cli.read_logs import read_logs
from gemma4_triage.report.model.build import build_report
from gemma4_triage.report.model.limits import MAX_POINTS
from gemma4_triage.report.model.records import Report
from gemma4_triage.report.model.source import nothing_but_logs, read_run_or_dumps

ROOT = Path(__file__).parents[2]
RUNS = ROOT / "tests" / "data" / "finished_runs"
RUN, CORPUS_RUN = RUNS / "e4b-trtllm", RUNS / "corpus"
BACKENDS_RUN, PATCHES_RUN = RUNS / "diff-backends", RUNS / "diff-patches"
CORPUS = ROOT / "tests" / "data" / "corpus_dumps"
LOGS = ROOT / "tests" / "data" / "logs"
SAMPLES = ROOT / "dumps" / "samples"
SEED_BUG = SAMPLES / "20261121T103430.648335Z_vm_r0_p24275_page-table-bounds_0001"
CONTAINED = SAMPLES / "20261121T133817.982072Z_vm_r0_p1291_page-table-bounds_0009"
LEAK = SAMPLES / "20261121T133240.124588Z_vm_r0_p8843_leak-audit_0001"

HOSTILE = (
    "<script>alert(1)</script>]]>--><img src=http://evil.example/x onerror=go()>\"'&`| {{ 7 * 7 }}\x00\x1b[31m\ufffe"
)


def report_of(*paths: Path, logs: tuple[Path, ...] = ()) -> Report:
    source = read_run_or_dumps(DumpStore(), [str(path) for path in paths], None) if paths else nothing_but_logs()
    return build_report(source, read_logs(map(str, logs), MAX_POINTS))


def hostile_draft(**changes) -> DumpDraft:
    """Return the seed bug, with HOSTILE wherever a manifest takes any text."""
    fields = {
        "summary": HOSTILE,
        "verdict": HOSTILE,
        "site": HOSTILE,
        "layer": Layer(id=4, type="sliding"),
        "backend": HOSTILE,
        "forward_mode": HOSTILE,
        "provenance": Provenance(
            table_space="full",
            buffer_space="swa",
            table_origin=f"{HOSTILE}.page_table",
            buffer_origin=HOSTILE,
            explanation=HOSTILE,
        ),
        "extents": {"pages_in_buffer": 65, HOSTILE: 3},
        "scalars": {HOSTILE: HOSTILE},
        "versions": {HOSTILE: HOSTILE},
        "launch_args": [HOSTILE],
        "guards": {HOSTILE: HOSTILE},
        "events": [{"kind": HOSTILE, "pool": HOSTILE, "site": HOSTILE, "step": 1, "pages": HOSTILE}],
    }
    return dataclasses.replace(seed_bug_draft(), **(fields | changes))


def large_draft(rows: int, columns: int, offences: list[tuple[int, int]]) -> DumpDraft:
    """Return a table of int32 in which all entries are right but those at `offences`, which are 70 of 65."""
    table = np.ones((rows, columns), np.int32)
    for row, column in offences:
        table[row, column] = 70
    listed = [
        Offence(table="page_table", row=row, column=column, value=70, lower=1, upper=65) for row, column in offences
    ]
    tensors = {"page_table": table, "cache_seqlens": np.full(rows, columns * 64, np.int32)}
    return dataclasses.replace(
        seed_bug_draft(),
        offences=listed,
        provenance=Provenance(table_space="swa", buffer_space="swa"),
        tensors={name: TensorPayload.from_array(array) for name, array in tensors.items()},
    )
