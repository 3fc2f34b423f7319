"""What somebody wrote beside a log in words: what is seen, where ranks stand, and with what all is well."""

import pytest

from gemma4_triage.logs.catalog import with_those_alike
from gemma4_triage.logs.notes_in_prose import difference_in
from gemma4_triage.logs.read import read_log
from gemma4_triage.logs.suspects import suspects
from made_logs import death, decode, found_in, only, prefill, started

START = started(model_path="m", tp_size=4, enable_hierarchical_cache=True, enable_dsa_prefill_context_parallel=True)


def facts_of(*lines: str):
    return read_log("log", ["".join(lines).encode()])


class TestDifferences:
    @pytest.mark.parametrize(
        ("note", "change"),
        [
            ("with --tp 1 all is well", "with --tp 1"),
            ("after a restart prompts give garbage; with --tp 1 all is well", "with --tp 1"),
            ("with --disable-cuda-graph the same model answers", "with --disable-cuda-graph"),
            ("with --disable-lora it starts", "with --disable-lora"),
            ("the same model without --disaggregation-mode answers fine", "without --disaggregation-mode"),
            ("text is nonsense; without the --speculative options it is right", "without --speculative-algorithm"),
            (
                "no error, but nonsense; without PD they are right",
                "without --disaggregation-mode (one server for both)",
            ),
            ("GSM8K 0%; with --moe-a2a-backend none GSM8K is as expected", "with --moe-a2a-backend none"),
            ("Accuracy: 0.060  (triton backend, same weights: about 0.95)", "with --attention-backend triton"),
            (
                "accuracy 0.005 (0.975 with the same server before we set the page size); text is broken",
                "without --page-size (1, or what the backend takes by itself)",
            ),
        ],
    )
    def test_what_is_well_is_a_change_to_try(self, note, change):
        assert difference_in(note) == change

    @pytest.mark.parametrize(
        "note",
        [
            "with --tp 1 it still crashes",
            "with --disable-cuda-graph the same garbage",
            "without --enable-lora it fails too",
            "with --tp 8 --page-size 64, A100",
            "answers are right, only slower",
            "only with --enable-lora, else fine",
            "gsm8k: 0.955 with 4 clients, 0.700 with 64",
            "8x H200, --tp 8",
            "it is fine with the flag --not-an-argument-of-anything",
        ],
    )
    def test_what_is_not_says_nothing(self, note):
        assert difference_in(note) == ""

    def test_it_leads_the_suspects(self):
        first = suspects(facts_of(START, prefill(1), decode(2), "# nonsense; with --tp 1 all is well\n"))[0]
        assert (first.id, first.of, first.shown) == ("noted-difference", "answers", True)
        assert first.change == "with --tp 1, as line 4 has it"

    def test_what_the_start_has_is_named_as_it_has_it(self):
        note = "# output repeats; the same prompt without context parallel is coherent\n"
        assert suspects(facts_of(START, prefill(1), decode(2), note))[0].change.startswith(
            "without --enable-dsa-prefill-context-parallel, "
        )

    def test_it_is_the_first_advice_behind_a_failure(self):
        lines = [decode(1), death(2, "KeyError: 'layer_9'"), "# with --disable-cuda-graph the same model answers\n"]
        assert only(lines).advice[0] == "with --disable-cuda-graph, with which all is well by the note in line 7"
        assert "by the note" not in " ".join(only(lines[:2]).advice)

    def test_its_options_are_not_those_of_this_server(self):
        facts = facts_of("# with --disable-cuda-graph the same model answers\n", "# --tp 4\n", decode(1))
        assert facts.arguments == {"tp_size": "4"} or facts.arguments == {"tp": "4"}


class TestWhatIsSeen:
    @pytest.mark.parametrize(
        ("note", "kind"),
        [
            ("# time per token doubles under load, it is slow", "speed"),
            ("# answers are garbage", "answers"),
            ("# RSS of the main process grows by 1 GB an hour", "memory"),
            ('# in the third turn: tool_calls null, content ""', "form"),
        ],
    )
    def test_its_kind_comes_first(self, note, kind):
        assert suspects(facts_of(START, prefill(1), decode(2), f"{note}\n"))[0].of == kind

    def test_without_a_note_answers_do(self):
        assert suspects(facts_of(START, prefill(1), decode(2), "# 8x H200\n"))[0].of == "answers"


class TestStanding:
    NOTE = "# from here on no line at all, GPU use 0 %, requests hang\n"

    def test_a_server_that_stands_by_a_note_is_a_finding(self):
        finding = only([START, prefill(1), decode(2), self.NOTE])
        assert (finding.rule, finding.confidence) == ("noted-silence", "possible")
        assert "a note beside the log says that the server" in finding.cause
        assert any("--enable-hierarchical-cache" in one for one in finding.advice)

    def test_what_ranks_meet_in_comes_first(self):
        start = started(model_path="m", tp_size=4, enable_symm_mem=True)
        assert only([start, prefill(1), decode(2), self.NOTE]).advice[0].startswith("once without --enable-symm-mem")

    def test_work_behind_it_is_no_standstill_and_yet_a_trouble_that_somebody_saw(self):
        assert only([START, prefill(1), self.NOTE, decode(9)]).rule == "noted-trouble"

    @pytest.mark.parametrize(
        "note",
        [
            "# hangs here in the warm-up; the same command without --enable-dp-attention starts\n",
            "# every request after this hangs. Without --enable-metrics all is well\n",
            "# num_running_reqs 0; the open connections never get an answer; new requests get 200\n",
        ],
    )
    def test_what_the_note_says_of_another_try_is_no_denial_of_it(self, note):
        assert only([START, prefill(1), decode(2), note]).rule == "noted-silence"

    def test_with_what_all_is_well_comes_before_what_such_a_start_is_known_for(self):
        note = "# every request after this hangs. Without --enable-metrics all is well\n"
        assert (
            only([started(model_path="m", is_embedding=True), prefill(1), note])
            .advice[0]
            .startswith("without --enable-metrics")
        )

    def test_of_another_try_that_works_this_server_does_not_stand_and_is_not_well(self):
        assert only([START, prefill(1), decode(2), "# hangs; without --enable-metrics it hangs as well\n"])
        finding = only([START, prefill(1), decode(2), "# with --enable-metrics it works and never hangs\n"])
        assert (finding.rule, finding.confidence) == ("noted-trouble", "possible")
        assert finding.advice[0].startswith("with --enable-metrics, with which all is well")

    @pytest.mark.parametrize("note", ["# the picture hangs on the wall\n", "# one client is stuck\n"])
    def test_what_is_not_of_the_whole_server_is_none(self, note):
        assert found_in([START, prefill(1), decode(2), note]) == ()

    def test_stacks_in_one_line_tell_the_ranks_apart(self):
        inner = "all_reduce (torch/distributed/distributed_c10d.py) <- can_terminate_prefetch (hiradix_cache.py)"
        other = "broadcast (torch/distributed/distributed_c10d.py) <- broadcast_pyobj <- recv_requests (scheduler.py)"
        lines = [START, prefill(1), decode(2), self.NOTE, f"# py-spy TP0: {inner}\n", f"# py-spy TP3: {other}\n"]
        finding = only(lines)
        assert "TP0 in hiradix_cache.py can_terminate_prefetch; TP3 in ? broadcast_pyobj" in finding.cause
        assert finding.advice[0].startswith("without --enable-hierarchical-cache, or without its storage backend")

    def test_a_note_of_py_spy_without_frames_is_no_stack(self):
        assert facts_of(START, decode(1), "# py-spy TP0: see the attachment\n").stacks == ()


def test_notes_change_nothing_of_a_failure_they_do_not_speak_of():
    lines = [decode(1), death(2, "KeyError: 'layer_9'")]
    plain = with_those_alike(facts_of(*lines))
    assert [one.advice for one in with_those_alike(facts_of(*lines, "# 4x H100, driver 570\n"))] == [
        one.advice for one in plain
    ]
