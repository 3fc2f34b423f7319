"""Prompts with pictures on several sides: the batched vision encoder is exercised and equal, the exact one differs.

The toy with a vision tower and its pictures are made by the comparison.
"""

import json

import pytest
from test_diff_live import Silent

from gemma4_repro.engine.host_environment import hermetic_environment
from gemma4_repro.parity.compare_tracks import Tolerances
from gemma4_repro.parity.exercise import differing, exercises, nothing_exercised, watched
from gemma4_repro.parity.judge import against_base, against_transformers, exit_code
from gemma4_repro.parity.load import asks_for_prompts
from gemma4_repro.parity.pictures import FOLDER_NAME, PICTURES_OF, make_pictures
from gemma4_repro.parity.runner import Options, run_sides
from gemma4_repro.parity.side import Side
from gemma4_triage.runs.comparison_sentences import cause_sentence
from gemma4_triage.runs.comparison_view import patches_at_work
from gemma4_triage.runs.convert_comparison import compared_patch

# Of vision-batching and yoco, which are not ported; test_diff_later_release_live.py compares pictures on 0.5.23.
pytestmark = [pytest.mark.engine, pytest.mark.releases("0.5.13.post1")]

BASE = Side("base", "trtllm_mha", False, "default,-vision-batching")
BATCHED = Side("batched", "trtllm_mha", False, "default")
BATCHED_MTP = Side("batched-mtp", "trtllm_mha", True, "default")
EXACT = Side("exact", "trtllm_mha", False, "default,+swa-window-width,+vision-hf-exact")
EXACT_MTP = Side("exact-mtp", "trtllm_mha", True, EXACT.patches)
COMPARED = differing(BASE, EXACT)
# Logits of pictures' rows are larger than of text, and so is their round-off.
EXACT_TO_HF = 1e-3


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pictures") / "run"
    options = Options("pictures", ("test",), folder, time_limit_s=300, compared=COMPARED, watched=watched(COMPARED))
    return run_sides("test", (BASE, BATCHED, BATCHED_MTP, EXACT, EXACT_MTP), options, Silent())


def test_prompts_have_the_pictures_that_they_should(run):
    lengths = [track.prompt_length for track in run.oracle.tracks]
    assert len(lengths) == len(PICTURES_OF) == 3
    # Each picture is at least 50 tokens here, and the text around it a handful.
    assert [length > 50 * count for length, count in zip(lengths, PICTURES_OF, strict=True)] == [True] * 3
    assert lengths[0] < 10


def test_the_batched_encoder_did_its_work_and_is_equal(run):
    (verdict,) = against_base(run, [("base", "batched")], Tolerances())
    found = {one.patch: one for one in exercises(run)}
    assert (verdict.status, exit_code([verdict], [run.arm("base")])) == ("agrees", 0)
    assert not nothing_exercised(run, tuple(found.values()))
    assert found["vision-batching"].counted
    assert found["vision-batching"].sides == ("batched", "batched-mtp", "exact", "exact-mtp")
    # Every position of the longest prompt was compared, not only its answer.
    assert max(comparison.rows for comparison in verdict.comparisons) > 150


def test_with_mtp_it_is_equal_to_the_base_without(run):
    """Dumps are not compared: with MTP there are more of the release's window, which neither side has fixed."""
    (verdict,) = against_base(run, [("base", "batched-mtp")], Tolerances())
    assert (verdict.completed, verdict.agrees) == (True, True)


def test_drafts_behind_pictures_are_accepted(run):
    """The assistant's window reaches into the last picture; the toy's text weights are those that it was made for."""
    for side in ("batched-mtp", "exact-mtp"):
        assert run.arm(side).outcome.result.accept_length >= 2


def test_yoco_answers_pictures_as_a_whole_prefill_does(tmp_path):
    whole = Side("whole", "trtllm_mha", False, "default,-yoco")
    compared = differing(whole, BATCHED)
    options = Options(
        "pictures",
        ("test",),
        tmp_path / "run",
        time_limit_s=300,
        compared=compared,
        watched=watched(compared),
        prompt_logprobs=asks_for_prompts("pictures", compared),
    )
    run = run_sides("test", (whole, BATCHED), options, Silent())
    (verdict,) = against_base(run, [("whole", "batched")], Tolerances())
    assert (verdict.status, exit_code([verdict], [run.arm("whole")])) == ("agrees", 0)
    (found,) = exercises(run)
    assert (found.patch, found.counted, found.sides) == ("yoco", True, ("batched",))


def test_the_exact_one_differs_by_design_and_it_is_said_so(run):
    (verdict,) = against_base(run, [("base", "exact")], Tolerances())
    assert (verdict.status, exit_code([verdict], [run.arm("base")])) == ("differs", 1)
    # The prompt without pictures is as it was.
    assert [comparison.agrees for comparison in verdict.comparisons] == [True, False, False]
    said = " ".join(patches_at_work([compared_patch(one) for one in exercises(run)]))
    assert "Meant to change answers of images and videos: vision-hf-exact." in said
    assert "NOT exercised" not in said
    assert all("are not tried with this load" in cause_sentence(verdict, cause) for cause in verdict.causes)


def test_only_the_exact_one_says_what_transformers_says(run):
    worst = {
        verdict.arm.side.id: max(comparison.worst for comparison in verdict.comparisons)
        for verdict in against_transformers(run, Tolerances())
    }
    assert max(worst["exact"], worst["exact-mtp"]) < EXACT_TO_HF < 1 < worst["batched"]
    assert worst["base"] == pytest.approx(worst["batched"], abs=1e-3)


def test_toy_and_pictures_are_removed_and_made_alike_again(run, tmp_path):
    assert not (run.folder / FOLDER_NAME).exists()
    toy, load = make_pictures(tmp_path, hermetic_environment())
    assert [len(prompt) for prompt in load.prompts] == [track.prompt_length for track in run.oracle.tracks]
    assert json.loads((toy / "config.json").read_text())["vision_config"]["num_hidden_layers"] == 2
    assert [len(files) for files in load.pictures] == list(PICTURES_OF)
