"""What stands beside a failure and says more of it: a runner, a side of a split, a start, a thread, a note, a path."""

import pytest

from command_line import run_command
from gemma4_triage.logs.notes_in_prose import difference_in, kinds_noted
from gemma4_triage.logs.read import read_log
from gemma4_triage.logs.suspects import suspects
from made_logs import ILLEGAL, SRT, decode, died, found_in, prefill, stamp, started, told

SERVE = "$ python3 -m sglang.launch_server --model-path {} {}\n"
READY = f"{stamp(1)} The server is fired up and ready to roll!\n"


def facts_of(*lines):
    return read_log("log", ["".join(lines).encode()])


def first_of(kind, *lines):
    return next(one.change for one in suspects(facts_of(*lines)) if one.of == kind)


class TestSplits:
    MOVING = (
        "{} Decode batch, #running-req: {}, #token: 0, token usage: 0.00, pre-allocated usage: 0.02, #prealloc-req: 0, "
        "#transfer-req: 6, #retracted-req: 0, cuda graph: False, gen throughput (token/s): 0.00, #queue-req: 0\n"
    )
    PREFILL = "# prefill: python3 -m sglang.launch_server --model-path m --tp 4 --disaggregation-mode prefill\n"
    DECODE = "# decode: ... --tp 1 --disaggregation-mode decode\n"
    HANGS = "# every request hangs; prefill is done with them after a second\n"

    def lines(self, running=0):
        return self.MOVING.format(stamp(10), running) + self.MOVING.format(stamp(50), running)

    def test_transfers_that_stand_by_a_note_too_are_told_with_ranks_that_differ(self):
        (found,) = found_in([self.PREFILL, self.DECODE, self.lines(), self.HANGS])
        assert (found.rule, found.confidence) == ("transfers-stand", "possible")
        assert found.advice[0].startswith("as many ranks on both sides, which differ here: --tp (4 at prefill, 1 at")

    def test_without_the_note_40_s_are_not_long(self):
        assert found_in([self.PREFILL, self.DECODE, self.lines()]) == ()

    def test_sides_of_as_many_ranks_are_not_named(self):
        (found,) = found_in([self.PREFILL, self.DECODE.replace("--tp 1", "--tp 4"), self.lines(), self.HANGS])
        assert "as many ranks" not in told(found)

    def test_notes_alone_keep_their_mark(self):
        facts = facts_of(self.PREFILL, self.DECODE, self.HANGS)
        assert facts.remarks["noted_silence"].text.startswith("# ")

    UP = f"{stamp(1)} INFO:     Application startup complete.\n"
    WARMS = f"{stamp(2)} Start of pd disaggregation warmup ...\n"
    SICK = f'{stamp(30)} INFO:     127.0.0.1:5 - "GET /health HTTP/1.1" 503 Service Unavailable\n'
    HOST = "--disaggregation-mode decode --enable-hierarchical-cache"

    def test_a_warm_up_that_does_not_end_leads_to_pages_of_the_host(self):
        (found,) = found_in([SERVE.format("m", self.HOST), self.UP, self.WARMS, self.SICK])
        assert "its own first request" in found.cause
        assert found.advice[0].startswith("once without --enable-hierarchical-cache on the decode server")

    def test_or_to_the_transfer_where_there_are_none(self):
        (found,) = found_in([SERVE.format("m", "--disaggregation-mode decode"), self.UP, self.WARMS, self.SICK])
        assert found.advice[0].startswith("once with --skip-server-warmup")

    def test_one_that_ended_is_not_named(self):
        (found,) = found_in([SERVE.format("m", self.HOST), self.UP, self.WARMS, READY, self.SICK])
        assert "its own first request" not in found.cause

    NO_SEGMENT = (
        "I1112 18:32:25.549899  3909 a.cpp:51] Failed to get segment descriptor for segment 1.2.3.4:5 address 0x7\n"
    )

    @pytest.mark.parametrize("drafts", [True, False])
    def test_memory_that_the_other_side_has_not_leads_to_drafts(self, drafts):
        given = "--disaggregation-mode prefill" + " --speculative-algorithm EAGLE3" * drafts
        (found,) = found_in([SERVE.format("m", given), self.NO_SEGMENT])
        assert found.rule == "kv-transfer"
        assert ("without --speculative-algorithm EAGLE3 on both sides" in found.advice[0]) == drafts


class TestThreads:
    FRAMES = '  File "/usr/lib/python3.12/threading.py", line 1073, in _bootstrap_inner\n    self.run()\n'
    LAST = "IndexError: index 0 is out of bounds for axis 0 with size 0\n"
    BEGUN = "Exception in thread Thread-21 (transfer_worker):\nTraceback (most recent call last):\n"
    WORKER = SRT.format("disaggregation/mooncake/conn.py", "transfer_worker", "f(x)")

    def test_a_thread_that_ended_is_no_process_that_died(self):
        (found,) = found_in([prefill(1), self.BEGUN, self.FRAMES, self.WORKER, self.LAST, prefill(9)])
        assert found.cause.startswith("A thread of a process that goes on ended of IndexError")
        assert found.advice[0].startswith("restart this server now")

    def test_one_that_nothing_follows_may_have_taken_its_process_along(self):
        (found,) = found_in([prefill(1), self.BEGUN, self.FRAMES, self.WORKER, self.LAST])
        assert found.cause.startswith("A process died")


class TestGraphs:
    FAILS = "Fail when using backend: breakable for prefill runner.\n"

    def test_the_runner_of_a_prefill_that_is_named_is_left_out_first(self):
        (found,) = found_in([prefill(1), died(ILLEGAL, ("managers/scheduler.py", "step", "f(x)")), self.FAILS])
        assert found.advice[0].startswith("once with --cuda-graph-backend-prefill disabled: line")
        assert "than breakable" in found.advice[0]

    def test_no_runner_is_named_without_that_line(self):
        (found,) = found_in([prefill(1), died(ILLEGAL, ("managers/scheduler.py", "step", "f(x)"))])
        assert "says that it was the runner" not in told(found)

    LACKS = "AttributeError: 'Attention' object has no attribute 'unified_kv_rope'"
    DRAFT = f"{stamp(2)} Capture draft cuda graph begin.\n"

    @pytest.mark.parametrize("draft", [True, False])
    def test_a_capture_of_the_draft_leads_to_none(self, draft):
        lines = [self.DRAFT * draft, died(self.LACKS, ("models/deepseek.py", "forward", "f(x)"))]
        assert found_in(lines)[0].advice[0].startswith("once without --speculative-algorithm") == draft


class TestXid:
    FAULT = "kernel: NVRM: Xid (PCI:0000:01:00): 31, pid=4410, name=sglang, Ch 8, MMU Fault: ENGINE GRAPHICS\n"
    NAMES = "# the CUDA coredump names kpool_topk_transform_kernel<512>\n"

    @pytest.mark.parametrize("names", [True, False])
    def test_the_kernel_that_a_dump_names_is_what_to_mend(self, names):
        (found,) = found_in([decode(1), self.FAULT, self.NAMES * names])
        assert ("names it: kpool_topk_transform_kernel." in found.cause) == names
        assert ("in whose notes kpool_topk_transform_kernel is mended" in found.advice[0]) == names


class TestNotes:
    WRONG = "# every answer is garbage text\n"

    @pytest.mark.parametrize("noted", [True, False])
    def test_a_note_of_wrong_answers_is_no_clean_bill(self, noted, tmp_path):
        log = tmp_path / "server.log"
        log.write_text(READY + decode(2) + self.WRONG * noted, encoding="utf-8")
        ran = run_command(("logs", str(log)), {"COLUMNS": "400", "NO_COLOR": "1"})
        said = "a note beside the log says what no line of a log shows, that answers are wrong, repeat"
        assert (said in ran.stdout) == noted
        assert "once each with --disable-cuda-graph" in ran.stdout
        assert ran.returncode == noted

    @pytest.mark.parametrize("note", ["# no garbage any more\n", "# it isn't slow\n", "# ran well, never garbled\n"])
    def test_a_note_that_denies_it_is_none(self, note):
        assert found_in([READY, decode(2), note]) == ()

    def test_where_the_log_fails_by_itself_the_log_is_what_is_told(self):
        rules = {one.rule for one in found_in([READY, decode(2), self.WRONG, "Killed\n"])}
        assert rules
        assert "noted-trouble" not in rules

    def test_what_all_was_well_with_is_the_first_advice(self):
        (found,) = found_in([READY, decode(2), self.WRONG, "# with --disable-cuda-graph answers are right\n"])
        assert found.advice[0].startswith("with --disable-cuda-graph, with which all is well")


class TestAmd:
    FAULT = "Memory access fault by GPU node-6 on address 0x77aed92f5000. Reason: Unknown.\n"
    ILLEGAL_CODE = (
        "HSA_STATUS_ERROR_ILLEGAL_INSTRUCTION: The agent attempted to execute an illegal shader instruction\n"
    )

    def test_a_copy_to_the_host_that_faults_leads_to_the_direct_one(self):
        host = "--enable-hierarchical-cache --hicache-io-backend {}"
        first = [
            found_in([SERVE.format("m", host.format(way)), decode(1), self.FAULT])[0].advice[0]
            for way in ("kernel", "direct")
        ]
        assert ["--hicache-io-backend direct (" in one for one in first] == [True, False]

    def test_code_that_is_none_leads_to_the_library_that_unloads_it(self):
        (found,) = found_in([decode(1), self.ILLEGAL_CODE])
        assert "its module was unloaded" in found.cause
        assert "newer aiter" in found.advice[0]

    def test_the_first_prefill_says_that_no_load_did_it(self):
        alone = prefill(2).replace("#running-req: 4", "#running-req: 0")
        (found,), (later,) = (found_in([READY, alone, *more, self.FAULT]) for more in ((), (prefill(3),)))
        assert found.advice[0].startswith("its first prefill")
        assert "its first prefill" not in told(later)


class TestNames:
    TOO_LARGE = "triton.runtime.errors.OutOfResources: shared memory, Required: 147456, Hardware limit: 101376"

    @pytest.mark.parametrize(
        ("model", "experts"), [("r/gemma-4-26B-A4B-it-FP8-Dynamic", True), ("r/gemma-3-4b", False)]
    )
    def test_a_kernel_without_a_frame_is_one_of_quantised_experts_by_the_model(self, model, experts):
        (found,) = found_in([SERVE.format(model, ""), died(self.TOO_LARGE)])
        assert found.rule == "kernel-too-large"
        assert "147456 of on-chip shared memory" in found.cause
        assert ("num_stages (fused_moe_triton/configs" in found.advice[0]) == experts

    BLOCKS = "ValueError: Weight output_partition_size = 576 is not divisible by weight quantization block_n = 128."

    @pytest.mark.parametrize(("model", "whole"), [("/models/DeepSeek-R1-BF16", True), ("/models/DeepSeek-R1", False)])
    def test_weights_in_bf16_have_no_blocks(self, model, whole):
        (found,) = found_in([SERVE.format(model, "--tp 32"), died(self.BLOCKS)])
        assert ("take quantization_config out" in found.advice[0]) == whole

    @pytest.mark.parametrize("name", ["SGLANG_HACK_FLASHMLA_BACKEND", "SGLANG_LOG_MS"])
    def test_a_variable_on_trial_is_unset_first(self, name):
        lines = [f"export {name}=other\n", SERVE.format("m", ""), died("KeyError: 'cup'", ("a.py", "f", "g(x)"))]
        first = found_in(lines)[0].advice[0]
        assert first.startswith(f"once without {name}=other") == ("HACK" in name)

    UNREAD = f"{stamp(3)} Error in parse_streaming_increment: Unexpected character X\n"

    @pytest.mark.parametrize(
        ("parser", "words"), [("deepseekv4", "a later release"), ("qwen", "the parsers have to be")]
    )
    def test_a_parser_of_the_model_s_own_is_not_exchanged(self, parser, words):
        start = SERVE.format("deepseek-ai/DeepSeek-V4-Flash", f"--tool-call-parser {parser}")
        assert found_in([start, decode(2), self.UNREAD])[0].advice[0].startswith(words)


class TestSuspects:
    @staticmethod
    def began(**given):
        return started(model_path="google/gemma-3-27b-it", completion_template=None, tp_size=2, **given)

    @pytest.mark.parametrize(("template", "leads"), [(None, True), ("gemma-it", False)])
    def test_a_model_with_images_without_a_template_is_given_one(self, template, leads):
        start = self.began(chat_template=template)
        assert first_of("answers", start, READY, decode(2)).startswith("with --chat-template of") == leads

    def test_a_shortened_start_line_that_shows_none_is_enough(self):
        start = started(model_path="google/gemma-3-27b-it", chat_template=None)
        assert first_of("answers", start, READY, decode(2)).startswith("with --chat-template of")

    def test_later_releases_take_the_checkpoint_s_own(self):
        start = self.began(chat_template=None, swa_full_tokens_ratio=0.8)
        assert not first_of("answers", start, READY, decode(2)).startswith("with --chat-template of")

    FUSED = f"{stamp(1)} Shared experts fusion optimization enabled.\n"

    @pytest.mark.parametrize(("model", "leads"), [("zai-org/GLM-4.5V-FP8", True), ("deepseek-ai/DeepSeek-V3", False)])
    def test_fused_shared_experts_are_tried_apart(self, model, leads):
        lines = (started(model_path=model), self.FUSED, READY, decode(2))
        assert first_of("answers", *lines).startswith("with --disable-shared-experts-fusion") == leads

    @pytest.mark.parametrize(("model", "leads"), [("deepseek-ai/DeepSeek-V4-Pro", True), ("Qwen/Qwen3-8B", False)])
    def test_states_are_sent_by_another_backend(self, model, leads):
        split = {"disaggregation_mode": "decode", "disaggregation_transfer_backend": "mooncake"}
        change = first_of("answers", started(model_path=model, **split), READY, decode(2))
        assert change.startswith("with the other --disaggregation-transfer-backend than mooncake") == leads

    def test_a_note_of_the_speed_of_before_comes_first(self):
        note = "# RTX PRO 6000 (sm_120); the release before gave several times this speed\n"
        lines = (started(model_path="gpt-oss-120b", moe_runner_backend="triton_kernel"), note, READY, decode(2))
        assert kinds_noted(facts_of(*lines)) == ("speed",)
        assert suspects(facts_of(*lines))[0].id == "experts-of-mxfp4-on-12"

    def test_of_both_caches_the_host_s_is_left_out(self):
        both = "With --disable-radix-cache or without the hierarchical cache all is right"
        assert difference_in(both) == "without --enable-hierarchical-cache"
        assert difference_in("With --disable-radix-cache all is right") == "with --disable-radix-cache"


@pytest.mark.parametrize("option", ["--pp-size 8", "--pipeline-parallel-size 8"])
def test_the_long_name_of_an_option_is_the_short_one(option):
    command = f"$ python -m sglang.launch_server --model-path m {option}\n"
    dead = died("KeyError: 'model.layers.4.mlp.experts.w13_weight'", ("models/qwen3_5.py", "load_weights", "x"))
    (found, *_) = found_in([command, dead])
    assert "this one met a weight of another stage's" in found.cause
