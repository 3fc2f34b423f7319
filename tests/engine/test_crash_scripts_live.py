"""Scripts of repro/crash_repro end to end on the CPU engine: bash, the server, SGLang's own client, the report.

By default four that together have every backend, load and ending: all answered, dead as shipped, trapped. What the
scripts start is tested elsewhere in this folder, MTP V2 and the crash without probes too. `make test-crash` runs every
script (an hour and more on 2 cores).
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gemma4_dumps.errors import ExitCode
from gemma4_dumps.store import DumpStore
from gemma4_repro.bench.cores import session_members
from gemma4_repro.crash.cells import CELLS
from gemma4_repro.crash.scripts import script_name
from gemma4_triage.cli.crash_plan import toys
from gemma4_triage.errors import EnvironmentCannot

pytestmark = [pytest.mark.engine, pytest.mark.releases("0.5.13.post1", "0.5.23")]

ALL_VARIABLE = "CRASH_SCRIPTS"
SCRIPTS = Path(__file__).resolve().parents[2] / "repro" / "crash_repro"
LIMIT_S = 900
LOADS = ("summarisation", "images", "chats")
SEED = ("--fault", "swa-state-stale")


@pytest.fixture
def script(tmp_path):
    """Return what runs a cell's script with --toy: the exit code, the verdict and the run's folder."""

    def run(cell, *words):
        folder = tmp_path / "run"
        # The scripts find the command on the path.
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        command = ["bash", str(SCRIPTS / f"repro_{cell}.sh"), "--toy", *words, "--output", str(folder)]
        process = subprocess.Popen(
            command,
            env=os.environ | {"PATH": path},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        said, _ = process.communicate(timeout=LIMIT_S)
        assert session_members(process.pid) == []
        assert (folder / "TRIAGE_REPORT.md").is_file(), said[-4000:]
        return process.returncode, json.loads((folder / "verdict.json").read_text()), folder

    return run


def raised_first(verdict):
    (arm,) = verdict["arms"]
    return arm["raised"][0]["type"] if arm["raised"] else None


def test_text_images_and_chats_on_trtllm_with_mtp_v1_and_probes(script):
    """The other loads differ from the first in numbers only."""
    code, verdict, folder = script("e4b_trtllm_v1_bounds", *(word for load in LOADS for word in ("--load", load)))
    assert code == ExitCode.OK, json.dumps(verdict, indent=1)[-4000:]
    assert [load["id"] for load in verdict["loads"]] == list(LOADS)
    assert all(load["answered"] == load["requests"] for load in verdict["loads"])
    assert "every request is answered and the server lives" in (folder / "TRIAGE_REPORT.md").read_text()


def test_experts_on_triton_without_mtp(script):
    code, verdict, _ = script("26b_triton_off")
    assert (code, raised_first(verdict)) == (ExitCode.OK, None)
    assert verdict["expected"]["measured"].endswith("not measured with real weights")


def test_a_hybrid_with_mtp_v1_dies_as_shipped(script):
    code, verdict, _ = script("e2b_hybrid_v1")
    assert (code, raised_first(verdict)) == (ExitCode.OK, "IndexError")


def test_the_published_crash_with_probes(script):
    """Injected, since this release no longer has it: a dump before the illegal address."""
    code, verdict, folder = script("e4b_trtllm_v1_bounds", *SEED)
    assert (code, raised_first(verdict)) == (ExitCode.OK, "TrappedViolation")
    found = [entry.manifest for entry in DumpStore(folder / "e4b_trtllm_v1_bounds" / "dumps").list()]
    assert "page-table-bounds" in [manifest.rule for manifest in found if manifest]
    assert "draft-swa-state-stale" in (folder / "TRIAGE_REPORT.md").read_text()


@pytest.mark.skipif(os.environ.get(ALL_VARIABLE) != "all", reason="make test-crash runs all scripts")
@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: cell.id)
def test_every_script(script, cell):
    assert script_name(cell) == f"repro_{cell.id}.sh"
    try:
        toys(cell)
    except EnvironmentCannot as error:
        pytest.skip(error.message)
    code, verdict, _ = script(cell.id)
    assert code == ExitCode.OK, json.dumps(verdict, indent=1)[-4000:]
