"""`bench probes --host-engine`: three real servers at once, one round, and nothing left running."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

# What it measures is the same on each release, and three servers take minutes.
pytestmark = [pytest.mark.engine, pytest.mark.releases("0.5.23")]


def test_a_smoke_run(tmp_path):
    words = ["--host-engine", "--arm", "off,log", "--mtp", "off", "--batch", "2", "--max-minutes", "5", "--json"]
    folder, rows = tmp_path / "run", tmp_path / "rows.json"
    command = [sys.executable, "-m", "gemma4_triage", "bench", "probes", *words, "--run-folder", folder, "--out", rows]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert json.loads(rows.read_text()) == document
    assert document["measurement"] is False
    assert document["project"]["version"]
    assert document["run_folder"] == "run"
    assert document["command"].endswith("--run-folder run --out rows.json")
    assert {row["device"] for row in document["rows"]} == {"host engine"}
    assert [row["arm"] for row in document["rows"]] == ["none", "off", "log"]
    log = document["rows"][-1]
    assert 0 < log["probes_us"]["median"] < 1000 * log["step_ms"]["median"]
    assert {"page-table", "swa-allocator"} <= {hook.partition(".")[0] for hook in log["hooks_us"]}
    assert not any(row["probes_us"] for row in document["rows"][:-1]), "without clocks nothing is known"
    assert all(row["step_ms"]["n"] >= 2 and row["step_ms"]["median"] > 0 for row in document["rows"])
    assert all(row["tokens_per_step"] == 1 for row in document["rows"])
    (target,) = document["targets"]
    assert target["status"] == "met"
    assert target["proof"]["compared"] > 20
    assert target["proof"]["plugin_loaded"], "off has the plugin, none has not"
    commands = [path.read_text(errors="replace") for path in Path("/proc").glob("[0-9]*/cmdline") if path.exists()]
    assert not [words for words in commands if str(folder) in words]
