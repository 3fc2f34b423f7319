"""Tracebacks that somebody shortened: frames without quotes, an assertion in place of the end, messages below it."""

import pytest

from gemma4_triage.finding import Confidence
from gemma4_triage.logs.read import read_log
from made_logs import TRACEBACK, died_in, found_in, only, stamp, started, told

HEAD = f"{stamp(3)} Scheduler hit an exception: {TRACEBACK}"


class TestFrames:
    @pytest.mark.parametrize(
        ("line", "frame", "path"),
        [
            (
                "  ... lora/lora_manager.py, in fetch_new_loras",
                "lora_manager.py:? fetch_new_loras",
                "lora/lora_manager.py",
            ),
            (
                "  ... managers/tokenizer_manager.py, line 2163, in _handle_abort_req",
                "tokenizer_manager.py:2163 _handle_abort_req",
                "managers/tokenizer_manager.py",
            ),
            ("  … scheduler.py, line 9, in run_batch", "scheduler.py:9 run_batch", "managers/scheduler.py"),
            (
                "  ... layers/rotary_embedding, in forward",
                "rotary_embedding.py:? forward",
                "layers/rotary_embedding.py",
            ),
        ],
    )
    def test_one_that_is_shortened_by_hand_is_one(self, line, frame, path):
        (death,) = read_log("made.log", [f"{HEAD}{line}\n    call()\nValueError: no\n".encode()]).deaths
        assert (death.frame, death.path) == (frame, path)

    @pytest.mark.parametrize("line", ["  ... and so on, in short", "  ... 12 more, in all", "    x = y, in z"])
    def test_words_are_none(self, line):
        (death,) = read_log("made.log", [f"{HEAD}{line}\nValueError: no\n".encode()]).deaths
        assert death.frames == ()

    @pytest.mark.parametrize(
        ("lines", "thread"),
        [
            (("lora/lora_manager.py, in fetch_new_loras", "AssertionError"), "SGLang 25865"),
            (("managers/tokenizer_manager.py, line 2, in _handle_abort_req", "KeyError: 'a1'"), "SGLang 28341"),
        ],
    )
    def test_known_issues_are_known_by_them(self, lines, thread):
        frame, last = lines
        finding = only([f"{HEAD}  ... {frame}\n    call()\n{last}\n"])
        assert finding.rule == "known-issue"
        assert thread in finding.upstream


GATHERS = "/pytorch/aten/src/ATen/native/cuda/IndexKernelUtils.cu:16: vectorized_gather_kernel: Assertion "
GATHERS += "`ind >= 0 && ind < ind_dim_size` failed\n"


class TestAnAssertionForTheEnd:
    def test_it_is_what_the_process_died_of(self):
        finding = only([died_in("disaggregation/decode.py event_loop", last=GATHERS)])
        assert finding.rule == "index-outside-tensor"

    def test_an_exception_behind_it_counts_more(self):
        (death,) = read_log("made.log", [died_in("a.py f", last=f"{GATHERS}ValueError: no").encode()]).deaths
        assert death.type_name == "ValueError"

    @pytest.mark.parametrize(
        ("note", "named"),
        [
            ("# decode side, --enable-dp-attention; dies in the warmup stage\n", True),
            ("# dies of a long prompt, hours after the warm-up\n", False),
        ],
    )
    def test_a_note_says_that_it_was_the_warm_up(self, note, named):
        finding = only([died_in("disaggregation/decode.py event_loop", last=GATHERS), note])
        assert ("once with --skip-server-warmup" in told(finding)) == named


GUARD = """RuntimeError:
        An attempt has been made to start a new process before the
        current process has finished its bootstrapping phase.
"""


def test_a_message_that_begins_below_its_exception_is_read_without_frames():
    finding = only(["~/main.py, line 28, in <module>\n    llm = sgl.Engine()\n", GUARD])
    assert finding.rule == "start-refused"
    assert "__main__" in told(finding)


KEPT = "model.eh_proj.weight_scale not found in params_dict.\n"
DRAFT = f'{HEAD}  File "/srv/sglang/srt/speculative/eagle_worker_v2.py", in __init__\n'


class TestALayerThatIsKeptWhole:
    def test_its_scale_is_told_ahead_of_an_end_that_is_cut_off(self):
        first = found_in([f"{stamp(1)} {KEPT}", DRAFT])[0]
        assert (first.rule, first.confidence) == ("weight-names", Confidence.POSSIBLE)
        assert "model.eh_proj quantised" in told(first)
        assert "without --speculative-algorithm" in told(first)

    @pytest.mark.parametrize(
        "lines",
        [
            [f"{stamp(1)} {KEPT.replace('weight_scale', 'rotary_emb.inv_freq')}", DRAFT],
            [DRAFT],
            [f"{stamp(1)} {KEPT}", died_in("speculative/eagle_worker_v2.py __init__", last="ValueError: no draft")],
        ],
        ids=["a buffer", "no such line", "the exception is there"],
    )
    def test_where_that_is_not_so_nothing_is_said_of_it(self, lines):
        assert "weight-names" not in {one.rule for one in found_in(lines)}


HEADS = "KeyError: 'lm_head.weight'"


@pytest.mark.parametrize(
    ("lines", "confidence"),
    [
        ([died_in("models/gemma3_causal.py load_weights", last=HEADS)], Confidence.LIKELY),
        ([started(quantization="awq"), died_in("models/qwen2.py load_weights", last=HEADS)], Confidence.LIKELY),
        ([died_in("models/deepseek_vl2.py load_weights", last=HEADS)], Confidence.POSSIBLE),
    ],
)
def test_a_head_without_a_place_is_a_tied_one_where_the_class_ties(lines, confidence):
    finding = next(one for one in found_in(lines) if one.rule == "weight-names")
    assert finding.confidence is confidence
    assert ("another class than the checkpoint's own" in finding.cause) == (confidence is Confidence.POSSIBLE)
