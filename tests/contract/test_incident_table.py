"""docs/incidents.md is made of docs/incidents.json, and its verdicts are what the rules say today."""

import importlib.util
import json
import shlex
import statistics
from pathlib import Path
from types import ModuleType

import pytest

from gemma4_repro.corpus.clean import CLEAN
from gemma4_repro.corpus.faults import FAULTS
from gemma4_triage.cli import app

ROOT = Path(__file__).parents[2]
DOCUMENT = json.loads((ROOT / "docs" / "incidents.json").read_text())
ROWS = DOCUMENT["rows"]


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("measure_verdict_times", ROOT / "docs" / "measure_verdict_times.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_table_is_the_rows(script):
    """If this fails: python docs/measure_verdict_times.py, or with --table after a change of words only."""
    assert (ROOT / "docs" / "incidents.md").read_text() == script.markdown(DOCUMENT)


def test_every_fault_load_sample_and_log_is_measured(script):
    measured = {(row["part"], row["id"]) for row in ROWS}
    assert measured == {(case["part"], case["id"]) for case in script.cases()}
    assert {("fault", case.id) for case in FAULTS} | {("clean", case.id) for case in CLEAN} <= measured


def test_every_fault_names_its_public_issue():
    named = {row["id"]: row["reference"] for row in ROWS if row["part"] == "fault"}
    assert named == {case.id: case.origin.reference for case in FAULTS}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["id"])
def test_a_row_is_of_real_runs_and_adds_up(row):
    assert len(row["wall_s"]) == DOCUMENT["runs"] >= 5
    assert min(row["wall_s"]) > 0
    assert row["median_s"] == statistics.median(row["wall_s"])


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["id"])
def test_the_verdict_is_still_that(row, script, monkeypatch, tmp_path, cli):
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("SGLANG_TRTLLM_MHA_DEBUG_DIR", str(tmp_path))
    program, *words = shlex.split(row["command"])
    assert program == "gemma4-triage"
    code, out, _ = cli(*words, "--json")
    found = script.findings_of(json.loads(out), row["expected_rule"])
    assert code == row["exit_code"]
    assert [finding["rule"] for finding in found] == row["rules"]
    assert [finding["cause"] for finding in found][:1] == [row["verdict"]][: len(found)]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["id"])
def test_the_cause_is_right(row):
    if row["expected_rule"] is None:
        assert (row["rules"], row["exit_code"], row["position"]) == ([], 0, None)
    else:
        assert row["exit_code"] == (app.ExitCode.OK if row["confidence"] == "note" else app.ExitCode.VIOLATION)
        assert row["rules"][row["position"] - 1] == row["expected_rule"]
        assert row["position"] == 1 or row["part"] == "log"
