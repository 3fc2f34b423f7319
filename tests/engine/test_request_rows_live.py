"""The request-rows probe in the live engine: another request's pages in a row, in range, and clean loads."""

import pytest

from gemma4_dumps.reader import read_dump
from gemma4_dumps.store import DumpStore
from gemma4_repro.corpus.case import corrected
from gemma4_repro.toys.language import held_out_prompts

pytestmark = [pytest.mark.engine, pytest.mark.releases("0.5.13.post1", "0.5.23")]

OVERLAP = {"disable_overlap_schedule": False}


@pytest.fixture
def serve(run_engine, tmp_path):
    """Return what runs an engine under the probe alone: (exit code, log, manifests of its dumps)."""

    def run(engine, **more):
        prompts = held_out_prompts(4, 40, seed=3)
        prompts.append(prompts[0][:32] + prompts[1][:20])
        environment = {
            "GEMMA4_TRIAGE_PATCHES": corrected(),
            "GEMMA4_TRIAGE_PROBES": "request-rows",
            "GEMMA4_TRIAGE_LEAK": "dump",
            "SGLANG_TRTLLM_MHA_DEBUG": "trap",
            "SGLANG_TRTLLM_MHA_DEBUG_DIR": str(tmp_path),
        }
        ended = run_engine(environment, engines=[engine], prompts=prompts, new_tokens=24, **more)
        return ended.returncode, ended.log, [read_dump(entry.path).manifest for entry in DumpStore(tmp_path).list()]

    return run


@pytest.mark.parametrize("kind", ["plain-overlap", "mtp-sync", "mtp-overlap"])
def test_clean_loads_are_silent(serve, engine_arguments, mtp_arguments, kind):
    arguments = mtp_arguments if kind.startswith("mtp") else engine_arguments
    code, log, dumps = serve(arguments | (OVERLAP if kind.endswith("overlap") else {}))
    assert code == 0, log[-4000:]
    assert dumps == []


@pytest.mark.parametrize(("spoil", "why"), [("take_own_page", "changed"), ("take_cached_page", "prefix")])
def test_a_page_of_another_request_is_trapped_before_it_is_read(serve, mtp_arguments, spoil, why):
    code, log, dumps = serve(mtp_arguments, before=f"engine_changes:{spoil}")
    assert code != 0
    assert "TrappedViolation: request-rows" in log
    (found,) = [one for one in dumps if one.rule == "request-rows"]
    assert (found.verdict, found.scalars["why"], found.scalars["defect"]) == ("row_entry", why, "foreign")


def test_keys_that_something_else_writes_over_are_told(serve, engine_arguments):
    code, log, dumps = serve(engine_arguments, before="engine_changes:overwrite_keys")
    assert code != 0
    assert "TrappedViolation: request-rows" in log
    (found,) = [one for one in dumps if one.rule == "request-rows"]
    names = ("token", "tokens_changed", "pool", "part", "stands_there")
    assert found.verdict == "keys_changed"
    assert [found.scalars[name] for name in names] == [3, 1, "full", "keys", "zeros"]


def test_a_temperature_that_nobody_asked_for_is_told(serve, engine_arguments):
    code, _, dumps = serve(engine_arguments, before="engine_changes:heat_sampling")
    assert code != 0
    (found,) = [one for one in dumps if one.rule == "request-rows"]
    assert (found.verdict, found.scalars["parameter"], found.scalars["given"]) == (
        "sampling_differs",
        "temperature",
        "32.0",
    )
