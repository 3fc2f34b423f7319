"""`bench serving --host-engine`: two real servers, one round, the same answers, and nothing left running."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

# Its arms compare optimisations, none of which is ported.
pytestmark = [pytest.mark.engine, pytest.mark.releases("0.5.13.post1")]


def test_a_smoke_run(tmp_path):
    folder, out = tmp_path / "run", tmp_path / "rows.json"
    words = ["long-context", "--host-engine", "--max-minutes", "5", "--json", "--run-folder", folder, "--out", out]
    command = [sys.executable, "-m", "gemma4_triage", "bench", "serving", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert json.loads(out.read_text()) == document
    assert (document["measurement"], document["targets"], document["wrong"]) == (False, [], [])
    assert [row["arm"] for row in document["rows"]] == ["none", "owner-only-kv"]
    assert all(0 < row["ttft_ms"]["median"] <= 1000 * row["wall_s"]["median"] for row in document["rows"])
    assert [row["difference"] for row in document["rows"]] == [0, 0]
    memory = {arm: state["memory_usage"] for arm, state in document["servers"]["toy-e4b"].items()}
    assert memory["owner-only-kv"]["token_capacity"] > 1.2 * memory["none"]["token_capacity"]
    commands = [path.read_text(errors="replace") for path in Path("/proc").glob("[0-9]*/cmdline") if path.exists()]
    assert not [words for words in commands if str(folder) in words]
