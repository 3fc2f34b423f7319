"""A note says with what, or where else, all is well: so something here is not, though no note says what."""

import pytest

from gemma4_triage.logs.implied_by_another import kind_of
from made_logs import died, found_in, prefill, stamp, started, steady

READY = f"{stamp(1)} The server is fired up and ready to roll!\n"
LISTS = "something else was tried and is well, or better"


def noted(*notes: str, **settings):
    return found_in([started(model_path="m", **settings), READY, *steady(3), *(f"# {note}\n" for note in notes)])


@pytest.mark.parametrize(
    ("note", "kind"),
    [
        ("without response_format both fields are filled as expected", "form"),
        ("the same prompt with stream:false gives both calls complete", "form"),
        ("on a server without the draft model it is also right", "answers"),
        ("other models did not change", "answers"),
        ("with another --attention-backend the memory stays normal", "memory"),
        ("in transformers the text is fine", "answers"),
        ("on the other node throughput is as it should be", "speed"),
    ],
)
def test_what_is_well_elsewhere_is_not_here(note, kind):
    assert kind_of(f"# {note}".encode()) == kind
    (finding,) = noted(note)
    assert (finding.rule, finding.confidence) == ("noted-trouble", "possible")
    assert LISTS in finding.cause


@pytest.mark.parametrize(
    "note",
    [
        "with fa3 it is still wrong",
        "without the adapter it crashes too",
        "all requests are answered",
        "gsm8k is 0.95, as in the card",
        "this server serves the team since June",
        "on Tuesdays nobody asks anything",
    ],
)
def test_other_notes_say_nothing_of_it(note):
    assert kind_of(f"# {note}".encode()) is None


def test_a_try_without_any_server_line_is_advised_as_it_stands():
    said = "# with --triton-attention-num-kv-splits 1, or with flashinfer, the three texts are good\n"
    (finding,) = found_in(["$ python3 -m sglang.bench_one_batch --model m --correctness-test\n", said])
    assert finding.advice[0].startswith("with --triton-attention-num-kv-splits 1, with which all is well")


def test_it_never_hangs_with_an_option_says_that_it_does_without():
    (finding,) = noted("it never hangs with --disable-overlap-schedule")
    assert finding.advice[0].startswith("with --disable-overlap-schedule")


class TestScoresOfTwoBuilds:
    NOW = "main of today: gsm8k gives 0.9295, and 0.9249 in a second run"

    def test_the_earlier_build_that_scored_more_is_gone_back_to(self):
        (finding,) = noted(self.NOW, "main from half a day earlier, same machine: 0.9545")
        assert finding.advice[0].startswith("with the build that was well by a note (main from half a day earlier")

    @pytest.mark.parametrize("score", ["0.9310", "0.4100"])
    def test_one_that_scored_alike_or_less_is_not(self, score):
        assert noted(self.NOW, f"main from half a day earlier, same machine: {score}") == ()


class TestWordsBesideAServerThatRuns:
    PROBE = (
        '[DEBUG] <m> Health check error on http://h:30000/health, Get "http://h:30000/health": context deadline '
        "exceeded (Client.Timeout exceeded while awaiting headers)\n"
    )
    PROBE += "[ERROR] <m> health check timed out after 120s\n"

    def test_a_probe_that_gives_up_too_soon_is_told_apart_from_a_server_that_stands(self):
        finding = found_in([started(model_path="m"), READY, *steady(3), self.PROBE])[0]
        assert "stands since, or their limit of time is too short" in finding.cause
        assert finding.advice[0].startswith("curl -w '%{time_total}' of /health")
        assert all("too short" not in one.cause for one in found_in([started(model_path="m"), self.PROBE]))

    def test_transformers_that_answers_well_accuses_the_class(self):
        (finding,) = noted("every answer is \\u0000\\u0000\\u0000\\u0000. transformers itself reads it well")
        assert finding.advice[0].startswith("with a later release, whose class of this model")

    @pytest.mark.parametrize(("note", "leads"), [("is answered as if never seen", True), ("is answered wrong", False)])
    def test_a_picture_that_was_never_seen_is_counted_in_tokens(self, note, leads):
        (finding,) = noted(f"Text is good. Every picture {note}")
        assert finding.advice[0].startswith("with usage.prompt_tokens") is leads

    @pytest.mark.parametrize(("note", "leads"), [("# GKE node pool\n", True), ("# a VM\n", False)])
    def test_gke_has_its_libraries_elsewhere(self, note, leads):
        last = "RuntimeError: No accelerator (CUDA, XPU, HPU) is available."
        assert found_in([note, died(last, ("utils.py", "get_device", "raise"))])[0].advice[0].startswith("GKE") is leads

    def test_blocks_of_a_kernel_are_so_many_tokens(self):
        operator = "RuntimeError: The Inner error is reported as above, and the current working operator name is norm."
        grid = "EE1001: The argument is invalid.Reason: coreDim=123408 can't be greater than UINT16_MAX.\n"
        finding = found_in([prefill(1, new=7713), died(operator), grid])[0]
        assert "asked for 123408 blocks" in finding.cause
        assert "fewer than 4095 tokens" in finding.advice[0]
