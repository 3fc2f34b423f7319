"""Faults that no probe sees, put back in SGLang's own engine: the logit gate catches them, and is silent without."""

import pytest
from test_diff_live import Silent

from gemma4_repro.corpus.faults import LOGIT_FAULTS
from gemma4_repro.parity.compare_tracks import Tolerances
from gemma4_repro.parity.exercise import differing, exercises, nothing_exercised, watched
from gemma4_repro.parity.judge import against_base, exit_code
from gemma4_repro.parity.load import asks_for_prompts
from gemma4_repro.parity.runner import Options, run_sides
from gemma4_repro.parity.side import Side

# Its fault acts on yoco, which is not ported.
pytestmark = [pytest.mark.engine, pytest.mark.releases("0.5.13.post1")]


@pytest.fixture(scope="module", params=LOGIT_FAULTS, ids=lambda case: case.id)
def compared(request, tmp_path_factory):
    """(case, the run of: neither, what does the same without the fault, the fault, and the fault elsewhere)."""
    case = request.param
    without = ",".join(["default", *(f"-{patch}" for patch in case.unlike)])
    other = "trtllm_mha" if case.backend == "triton" else "triton"
    sides = (
        Side("plain", case.backend, False, without),
        Side("right", case.backend, False, "default"),
        Side("fault", case.backend, False, "default", case.inject),
        Side("right-elsewhere", other, False, "default"),
        Side("fault-elsewhere", other, False, "default", case.inject),
    )
    ids = differing(sides[1], sides[2])
    assert set(ids) == {*case.unlike, *case.inject}
    options = Options(
        scenario="e4b",
        typed=("test",),
        output=tmp_path_factory.mktemp("logits") / "run",
        time_limit_s=300,
        compared=ids,
        watched=watched(ids),
        prompt_logprobs=asks_for_prompts("e4b", ids),
    )
    return case, run_sides("test", sides, options, Silent())


def gate(run, base, other):
    (verdict,) = against_base(run, [(base, other)], Tolerances())
    return verdict


@pytest.mark.parametrize("base", ["plain", "right"])
def test_the_gate_catches_it(compared, base):
    _, run = compared
    verdict = gate(run, base, "fault")
    assert (verdict.status, exit_code([verdict], [run.arm(base)])) == ("differs", 1)
    # Far from round-off, and no probe left more than it does without the fault: the logits alone show it.
    assert max(comparison.worst for comparison in verdict.comparisons) > 100 * Tolerances().logprob
    assert not verdict.more_violations
    # The prompt's last row, in the layers that share keys.
    assert {cause.place.mode for cause in verdict.causes} == {"EXTEND"}


def test_without_it_the_gate_is_silent(compared):
    _, run = compared
    verdict = gate(run, "plain", "right")
    assert (verdict.status, exit_code([verdict], [run.arm("plain")])) == ("agrees", 0)
    assert max(comparison.worst for comparison in verdict.comparisons) < 1e-5
    assert verdict.causes == ()


def test_on_the_other_backend_it_does_not_show(compared):
    _, run = compared
    assert gate(run, "right-elsewhere", "fault-elsewhere").status == "agrees"


def test_both_did_their_work(compared):
    case, run = compared
    found = {one.patch: one for one in exercises(run)}
    assert set(found["yoco"].sides) == {"right", "right-elsewhere"}
    assert set(found[case.id].sides) == {"fault", "fault-elsewhere"}
    assert not nothing_exercised(run, tuple(found.values()))
    # Only answers' logprobs were asked for: of a prompt there is the row that its first answer comes from.
    assert {track.asked_from for arm in run.arms for track in arm.tracks} == {
        track.prompt_length - 1 for track in run.oracle.tracks
    }
