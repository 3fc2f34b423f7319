"""The seed fault under pressure: trtllm_mha dies of it with MTP, and Triton does not; without it nobody does.

The command's own runs, once: its sides and one without the fault share one import of SGLang. Triton takes most of the
time, and never comes to what the fault changes, so its run with the fault is its run without.
"""

import json
from dataclasses import replace

import pytest
from test_diff_live import Silent

from gemma4_repro.engine.outcome import Ending
from gemma4_repro.parity.compare_tracks import Tolerances
from gemma4_repro.parity.judge import against_transformers, exit_code
from gemma4_repro.parity.pressure import below_pressure, death_of
from gemma4_repro.parity.runner import Options, run_sides
from gemma4_repro.parity.side import Side, patches_for
from gemma4_triage.cli import diff_live

# On the base test_diff_live.py compares the same sides; these runs are the longest of all, and are made once.
pytestmark = [pytest.mark.engine, pytest.mark.releases("0.5.23")]

FAULT, RESOLVES = "swa-state-stale", "trtllm.resolve_swa_pool"
PATCHES = patches_for("pressure", (FAULT,)).ids
ASKED = (
    Side("triton-mtp-on", "triton", True, PATCHES, (FAULT,)),
    Side("trtllm_mha-mtp-off", "trtllm_mha", False, PATCHES, (FAULT,)),
    Side("trtllm_mha-mtp-on", "trtllm_mha", True, PATCHES, (FAULT,)),
)
CLEAN = Side("clean", "trtllm_mha", True, patches_for("pressure", ()).ids)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pressure") / "run"
    options = Options(
        "e4b",
        ("test",),
        folder,
        time_limit_s=900,
        compared=(FAULT,),
        watched=(RESOLVES,),
        load_name="pressure",
    )
    return run_sides("test", (CLEAN, *reversed(ASKED)), options, Silent())


@pytest.fixture
def document(run, cli, monkeypatch):
    """Say what the command prints; it is handed the runs of exactly the sides that it asks for."""
    asked = []

    def made(kind, sides, options):
        asked.append((options.load_name, options.compared, options.watched, *sides))
        return replace(run, arms=tuple(run.arm(side.id) for side in ASKED))

    monkeypatch.setattr(diff_live, "_run", made)
    code, out, _ = cli("diff", "backends", "--load", "pressure", "--fault", FAULT, "--json")
    ((load, compared, watched, *sides),) = asked
    assert (load, compared, watched) == ("pressure", (FAULT,), (RESOLVES,))
    # Triton without MTP is left out here, which is the rest of the command's four.
    assert [side for side in sides if side.id != "triton-mtp-off"] == list(ASKED)
    return json.loads(out) | {"code": code}


def test_trtllm_dies_and_triton_does_not_under_the_same_pressure(document):
    assert document["code"] == document["exit_code"] == 1
    sides = {side["id"]: side for side in document["sides"]}
    dead = sides["trtllm_mha-mtp-on"]
    died = dead["died"]
    assert (dead["status"], died["type"], died["phase"]) == ("crashed", "IllegalAddress", "decode")
    assert 0 < died["requests_finished"] < document["load"]["requests"]
    assert died["finished_agree_with_transformers"] is True
    assert died["dumps"]
    assert set(died["prompts_at_fault"]) <= set(died["prompts_in_step"])
    assert died["prompts_at_fault"]
    for other in ("triton-mtp-on", "trtllm_mha-mtp-off"):
        assert (sides[other]["status"], sides[other]["died"]) == ("agrees", None)
        assert sides[other]["against"][0]["agrees"] is True
    assert min(side["usage"]["swa_peak"] for side in sides.values()) > 0.85
    assert document["load"] | {"name": ""} == {"name": "", "requests": 24, "swa_peak_above": 0.85}
    assert document["fixes_left_out"] == ["swa-state-swap"]
    assert document["summary"][0].startswith("trtllm_mha-mtp-on (")
    assert ") dies; triton-mtp-on (" in document["summary"][0]


def test_the_dump_is_of_the_step_in_which_it_died(run):
    arm = run.arm("trtllm_mha-mtp-on")
    assert arm.outcome.ending is Ending.CRASHED
    found = death_of(arm, run, Tolerances())
    manifests = [entry.manifest for entry in found.dumps]
    found_by = {(manifest.rule, manifest.role) for manifest in manifests}
    assert found_by - {("process-end", None)} == {("page-table-bounds", "draft")}
    # Step 7 leaves one of pages past the end, and one of pages that are in range and of the wrong pool.
    assert any(offence.value >= offence.upper for manifest in manifests for offence in manifest.offences)
    assert len(found.dumps) < len(arm.dumps)
    assert arm.usage.last.raised == "IllegalAddress"


def test_triton_never_comes_to_what_the_fault_changes(run):
    reached = {arm.side.id: RESOLVES in arm.reached for arm in run.arms if arm.side.faults}
    assert reached == {"triton-mtp-on": False, "trtllm_mha-mtp-off": True, "trtllm_mha-mtp-on": True}


def test_without_the_fault_the_same_load_is_answered_as_transformers_answers_it(run):
    clean = replace(run, arms=(run.arm("clean"),))
    (verdict,) = against_transformers(clean, Tolerances())
    assert (verdict.status, verdict.causes, exit_code([verdict])) == ("agrees", (), 0)
    assert max(comparison.worst for comparison in verdict.comparisons) < 1e-4
    assert below_pressure(run) == ()
    assert len(verdict.comparisons) == len(clean.arms[0].usage.finished) + len(clean.arms[0].usage.last.slots) == 24


def test_the_answers_of_the_load_are_not_left_behind(run):
    left = {path.name for path in (run.folder / "trtllm_mha-mtp-on").iterdir()}
    assert left == {"dumps", "log.txt", "usage.jsonl"}
    assert {path.name for path in (run.folder / "clean").iterdir()} == {
        "dumps",
        "log.txt",
        "result.json",
        "usage.jsonl",
    }
