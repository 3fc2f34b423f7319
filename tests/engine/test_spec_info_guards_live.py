"""Rounds in which all requests finish, each followed by a prefill at once, on the live engine with MTP.

SGLang's own empty draft input is what makes that work; without it the fix `spec-info-guards` does.
"""

import pytest

from gemma4_repro.toys.language import held_out_prompts

pytestmark = pytest.mark.engine

WITHOUT_GUARDS = {"GEMMA4_TRIAGE_PATCHES": "default,-spec-info-guards"}
WITH_GUARDS = {"GEMMA4_TRIAGE_PATCHES": "default"}
# What it does is to take the install of the empty draft input away.
INSTALL_REMOVED = {"GEMMA4_TRIAGE_FAULTS": "unmergeable-spec-info"}
PROBES = {"SGLANG_TRTLLM_MHA_DEBUG": "trap", "GEMMA4_TRIAGE_LEAK": "raise"}
GUARD_SAYS = "spec-info-guards: merge_batch on a batch whose requests have all finished"


@pytest.fixture(scope="module")
def serve(run_engine, mtp_arguments):
    """serve(environment) -> Run of four requests, of which each arrives as the one before has finished."""
    load = {
        "before": "lifecycle_child:arrive_after_last_rounds",
        "engines": [mtp_arguments | {"log_level": "info"}],
        "prompts": held_out_prompts(4, 40, seed=6),
        "new_tokens": 12,
        "each_alone": True,
    }
    return lambda environment: run_engine(environment, **load)


@pytest.fixture(scope="module")
def with_install(serve):
    return serve(WITHOUT_GUARDS | PROBES)


def tokens(run):
    (answers,) = run.outputs
    return [answer["tokens"] for answer in answers]


def test_the_empty_draft_input_of_the_release_is_enough(with_install):
    assert with_install.returncode == 0, with_install.log[-4000:]
    assert [len(answer) for answer in tokens(with_install)] == [12] * 4


def test_without_it_and_without_the_fix_the_scheduler_dies(serve):
    run = serve(WITHOUT_GUARDS | INSTALL_REMOVED)
    assert run.returncode != 0
    assert "'FrozenKVMTPVerifyInput' object has no attribute 'merge_batch'" in run.log


def test_without_it_and_with_the_fix_the_tokens_are_the_same(serve, with_install):
    """Also for the probes: what the fix has mended is no finding."""
    run = serve(WITH_GUARDS | INSTALL_REMOVED | PROBES)
    assert run.returncode == 0, run.log[-4000:]
    assert run.log.count(GUARD_SAYS) == 3, "one merge per request but the first"
    assert "FAULT INJECTED: unmergeable-spec-info" in run.log
    assert tokens(run) == tokens(with_install)
