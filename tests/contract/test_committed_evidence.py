"""What earlier releases wrote is read: every committed verdict of schema version 1.0, every dump, every bench row."""

import json
from pathlib import Path

import pytest

from gemma4_dumps.reader import read_dump
from gemma4_dumps.verify import verify_dump

ROOT = Path(__file__).parents[2]
RUNS = sorted((ROOT / "tests" / "data").glob("*_runs/*/verdict.json"))
DUMPS = sorted(path.parent for part in ("dumps/samples", "tests/data") for path in (ROOT / part).rglob("manifest.json"))
ROWS = sorted(
    path
    for folder in ("docs/bench", "kernels/bench/rows")
    for path in (ROOT / folder).glob("*.json")
    if json.loads(path.read_text()).get("kind") in ("bench-probes", "bench-kernels", "bench-serving")
)


def test_there_is_a_verdict_of_every_kind():
    verdicts = [json.loads(path.read_text()) for path in RUNS]
    assert {verdict["schema_version"] for verdict in verdicts} == {"1.0"}
    assert {verdict["kind"] for verdict in verdicts} == {"repro", "corpus", "diff-backends", "diff-patches"}
    # A run of `repro crash` is a verdict of `repro` that has a cell.
    assert {"cell" in verdict for verdict in verdicts if verdict["kind"] == "repro"} == {False, True}


@pytest.mark.parametrize("path", RUNS, ids=lambda path: "-".join(path.parts[-3:-1]))
def test_a_verdict_is_reported(cli, path):
    verdict = json.loads(path.read_text())
    code, out, err = cli("report", path.parent, "--json")
    assert (code, err) == (verdict["exit_code"], "")
    parts = verdict.get("arms") or verdict.get("sides") or verdict["faults"] + verdict["clean"]
    assert parts
    assert all(json.dumps(part["id"]) in out for part in parts)


@pytest.mark.parametrize("path", DUMPS, ids=lambda path: f"{path.parents[1].name}-{path.name}")
def test_a_dump_is_read_and_sound(path):
    assert not read_dump(path).damage
    assert verify_dump(path).ok


@pytest.mark.parametrize("path", ROWS, ids=lambda path: path.stem)
def test_rows_are_drawn(cli, path, tmp_path):
    code, _, err = cli("bench", "plot", path, "--out", tmp_path / "rows.svg")
    assert code == 0, err
    assert (tmp_path / "rows.svg").read_text().startswith("<svg")
