"""The scenarios about MTP's life in a scheduler, each once, through the command line, with the real engine."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

# 0.5.14 and later have spec v2 themselves: mtp-v2 and what it brings are for 0.5.13.post1.
pytestmark = [pytest.mark.engine, pytest.mark.releases("0.5.13.post1")]

LIMIT_S = 600


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Return a function of a scenario to the document of `repro --json`; every arm was as expected."""

    def run(scenario):
        folder = tmp_path_factory.mktemp(scenario) / "run"
        command = [Path(sys.executable).with_name("gemma4-triage"), "repro", scenario, "--json", "--output", folder]
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
        assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
        return json.loads(done.stdout)

    return run


@pytest.fixture(scope="module")
def zero_accept(run):
    return run("mtp-zero-accept")


def test_with_pictures_the_scheduler_dies_alike_and_is_cured_alike(zero_accept):
    """Three requests, of no picture, one and three; each but the first is merged into a batch that has finished."""
    raised = arm(zero_accept, "pictures-fault")["raised"]
    assert (raised[0]["type"], "no attribute 'merge_batch'" in raised[0]["message"]) == ("AttributeError", True)
    log = Path(arm(zero_accept, "pictures-fixed")["log"]).read_text()
    assert log.count("spec-info-guards: merge_batch on a batch whose requests have all finished") == 2
    assert arm(zero_accept, "pictures-fixed")["numbers"]["accept_length"] >= 2
    assert "spec-info-guards: merge_batch" not in Path(arm(zero_accept, "pictures-release")["log"]).read_text()


@pytest.fixture(scope="module")
def leak(run):
    return run("mtp-v2-leak")


def arm(document, name):
    return next(arm for arm in document["arms"] if arm["id"] == name)


def test_without_the_empty_draft_input_the_scheduler_dies(zero_accept):
    raised = arm(zero_accept, "fault")["raised"]
    assert (raised[0]["type"], "no attribute 'merge_batch'" in raised[0]["message"]) == ("AttributeError", True)


def test_the_probe_says_what_was_left_on_the_batch(zero_accept):
    assert zero_accept["root_cause"]["text"].startswith(
        "ScheduleBatch.merge_batch: the batch carries a FrozenKVMTPVerifyInput, which has no merge_batch. "
    )


def test_the_fix_was_needed_at_every_merge(zero_accept):
    """Four requests, each let in as the one before has finished; that the tokens are the release's, the arm says."""
    log = Path(arm(zero_accept, "fixed")["log"]).read_text()
    assert log.count("spec-info-guards: merge_batch on a batch whose requests have all finished") == 3
    assert "FAULT INJECTED: unmergeable-spec-info" in log


def test_with_the_releases_own_draft_input_there_is_nothing_to_fix(zero_accept):
    for name in ("release", "spec-v2"):
        assert "spec-info-guards: merge_batch" not in Path(arm(zero_accept, name)["log"]).read_text()


def test_the_published_leak_is_24_tokens_of_one_request(leak):
    """30 tokens taken and 6 of them locked, as in the published report; the arms hold the 24 against both counts."""
    assert arm(leak, "fault")["numbers"]["tokens_missing"] == 24
    assert "available=482, evictable=0, protected=6" in arm(leak, "fault")["raised"][0]["message"]
    assert arm(leak, "fault-audit")["numbers"]["pages_lost"] == 24
    assert leak["root_cause"]["text"].startswith(
        "Full pool: slot 1, generation 1 lost 24: 1 from alloc_for_extend (at step 0), "
        "23 from spec_v2_decode (16 at step 1, 1 at step 2, 6 at step 3)."
    )


def test_without_the_fault_nothing_is_left(leak):
    for name in ("overlap-published", "v1", "sync", "overlap"):
        clean = arm(leak, name)
        assert (clean["ending"], clean["dumps"]) == ("completed", [])
        assert clean["numbers"]["used_tokens_after_flush"] == 0


def test_as_many_drafts_are_accepted_overlapped_or_not(leak):
    lengths = {name: arm(leak, name)["numbers"]["accept_length"] for name in ("v1", "sync", "overlap")}
    assert set(lengths.values()) == {lengths["v1"]}
    assert lengths["v1"] > 2
