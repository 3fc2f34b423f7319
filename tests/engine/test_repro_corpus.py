"""A part of the corpus through the command line, on the live engine: a fault for each probe, and a clean load."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import sglang

from gemma4_repro.corpus.catalog import choose_cases
from gemma4_repro.corpus.matrix import NOT_OF_THE_CORPUS
from gemma4_runtime.catalog import CATALOG
from gemma4_runtime.releases import BASE

pytestmark = [pytest.mark.engine, pytest.mark.releases("0.5.13.post1", "0.5.23")]

CASES = (
    "page-past-the-end",
    "eager-out-cache-loc",
    "double-bookkeeping",
    "finish-inside-forward",
    "window-one-too-wide",
    "swa-alloc-oob",
    "clean-aborts",
)
LATER = (
    "page-past-the-end",
    "swa-state-stale",
    "swa-alloc-oob",
    "stale-mapping",
    "page-over-count",
    "finish-inside-forward",
    "row-too-short",
    "clean-retraction",
    "clean-aborts",
)
CASES = CASES if sglang.__version__ == BASE else LATER
# On a busy machine row-too-short alone takes five minutes on a later release.
TIME_LIMIT_S = 400 if sglang.__version__ == BASE else 1200


@pytest.fixture(scope="module")
def document(tmp_path_factory):
    command = [Path(sys.executable).with_name("gemma4-triage"), "repro", "corpus", "--only", ",".join(CASES), "--json"]
    output = tmp_path_factory.mktemp("corpus") / "run"
    done = subprocess.run(
        [*command, "--output", str(output)], capture_output=True, text=True, timeout=TIME_LIMIT_S, check=False
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-4000:]
    return json.loads(done.stdout)


def test_there_is_a_fault_for_every_probe():
    probes = {probe for case in choose_cases(CASES) for probe in getattr(case, "probes", ())}
    assert probes == {patch.id for patch in CATALOG if patch.finds} - NOT_OF_THE_CORPUS


def test_nothing_is_missed_misnamed_or_made_up(document):
    assert document["totals"] == {
        "faults": sum(not name.startswith("clean-") for name in CASES),
        "missed": 0,
        "wrong_causes": 0,
        "clean_runs": sum(name.startswith("clean-") for name in CASES),
        "false_alarms": 0,
        "unfit_clean_runs": 0,
    }
    assert document["exit_code"] == 0


def test_every_fault_names_its_dump_its_step_and_its_cause(document):
    for fault in document["faults"]:
        assert fault["cause"] == "right", fault["id"]
        assert fault["dumps"], fault["id"]
        assert fault["root_cause"], fault["id"]
        assert fault["dumps"][0]["step"] == fault["steps_to_detection"]
    steps = {fault["id"]: fault["steps_to_detection"] for fault in document["faults"]}
    found_at_start = "window-one-too-wide" if sglang.__version__ == BASE else "swa-state-stale"
    assert steps[found_at_start] == 0
    # Three healthy builds of target verify after the prefill, then the spoiled one.
    assert steps["page-past-the-end"] == 5


# 0.5.15 and later have what the fix does.
@pytest.mark.releases("0.5.13.post1")
def test_without_its_fix_the_eager_draft_dies_on_out_cache_loc(document):
    """And with the fix no run of any other case does."""
    endings = {case["id"]: case["ending"] for case in (*document["faults"], *document["clean"])}
    assert "must match the size of tensor" in endings.pop("eager-out-cache-loc")
    assert not any("must match the size of tensor" in ending for ending in endings.values())
