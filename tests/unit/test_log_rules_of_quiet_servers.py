"""What numbers and warnings of a server tell that answers, and has a fault: each rule fires, and where it is silent."""

import pytest

from gemma4_triage.finding import Confidence
from gemma4_triage.logs.catalog import findings
from gemma4_triage.logs.read import read_log
from gemma4_triage.logs.rules.refused_by_check import refused
from made_logs import MADE, death, decode, found_in, only, prefill, retraction, stamp, started, steady

NO_MARKS = "Warning: More image data items provided than corresponding tokens found in the prompt.\n"
POOLS = f"{stamp(0)} max_total_num_tokens=300000, chunked_prefill_size=8192, context_len=163840\n"
ANSWER = f'{stamp(9)} INFO:     10.0.0.7:1 - "POST /v1/rerank HTTP/1.1" 200 OK\n'


def orphan(rid: str) -> str:
    return f"{stamp(2)} Received output for rid='{rid}' but the state was deleted in TokenizerManager.\n"


class TestRequestsThatNobodyWaitsFor:
    def test_one_that_goes_on_is_told(self):
        assert "their abort was lost" in only(MADE["orphaned-requests"]).cause

    def test_the_health_check_that_fails_of_it_is_told_with_it(self):
        failed = f"{stamp(90)} Health check failed. Server couldn't get a response\n"
        assert "kept the tokenizer manager" in only([decode(1), orphan("a"), failed]).cause

    def test_what_every_abort_leaves_is_not_told(self):
        lines = [line for rid in range(40) for line in (orphan(f"r{rid}"), orphan(f"r{rid}"))]
        assert found_in([decode(1), *lines, decode(3)]) == ()


class TestRequestsThatOutgrowThePool:
    def test_it_says_how_long_they_are(self):
        finding = only([POOLS, *MADE["outgrown-pool"]])
        assert "2 requests alone fill the pool, some 148500 tokens each" in finding.cause
        assert "a max_tokens for every request" in finding.advice[0]

    @pytest.mark.parametrize(
        "before",
        [
            pytest.param(steady(3, running=40, full=0.99, swa=0.98), id="a pool that many share"),
            pytest.param(steady(3, running=2, full=0.7, swa=0.7), id="a pool with room"),
        ],
    )
    def test_what_is_not_told(self, before):
        assert found_in([POOLS, *before, retraction(4), decode(5)]) == ()


class TestGraphsThatNothingRunsIn:
    ASKED = started(model_path="m", cuda_graph_max_bs=160)

    def test_it_is_told_where_graphs_of_that_size_were_asked_for(self):
        finding = only([self.ASKED, *steady(10, graph=False)])
        assert "No decode step ran within a CUDA graph" in finding.cause

    def test_the_sum_over_ranks_is_a_suspect(self):
        asked = started(model_path="m", cuda_graph_max_bs=160, enable_dp_attention=True)
        lines = [decode(at, rank=f"DP{at} TP{at}", graph=False) for at in range(8)]
        assert "all data-parallel ranks together" in only([asked, *lines]).advice[0]

    @pytest.mark.parametrize(
        "start",
        [
            pytest.param(started(model_path="m", disable_cuda_graph=True, cuda_graph_max_bs=160), id="switched off"),
            pytest.param(started(model_path="m", cuda_graph_max_bs=4), id="larger than any"),
            pytest.param("", id="a start that is not in the log"),
        ],
    )
    def test_what_is_not_told(self, start):
        assert found_in([start, *steady(10, graph=False)]) == ()


class TestImagesWithoutMarks:
    def test_prompts_that_lack_them_are_told(self):
        finding = only([NO_MARKS, prefill(1, new=1), ANSWER])
        assert finding.rule == "image-tokens"
        assert "1 requests" in finding.evidence[-1].meaning

    def test_a_death_for_its_images_leads(self):
        last = death(2, "RuntimeError: Insufficient multimodal embedding length: 279 vs 260", frame="mm_utils.py")
        assert "differ in number" in only([NO_MARKS, decode(1), last]).cause


class TestTransfersAfterAPause:
    FAILED = (
        f"{stamp(1200, 'TP0')} Decode transfer failed for request rank=0 with exception "
        "KVTransferError(bootstrap_room=8): Request 8 timed out after 300.0s in KVPoll.WaitingForInput\n"
    )

    def test_a_server_that_was_idle_may_have_lost_its_connections(self):
        finding = only([decode(1, rank="TP0"), self.FAILED])
        assert "idle for 15 minutes before" in finding.cause
        assert finding.advice[0].startswith("if requests fail after a pause alone")

    def test_a_server_that_works_has_none(self):
        assert "idle" not in only([decode(1000, rank="TP0"), self.FAILED]).cause


class TestARoomOfSeveralRequests:
    LATE = TestTransfersAfterAPause.FAILED.replace(
        "rank=0", "rank=0 decode_req.req.rid='{}' decode_req.req.bootstrap_room=8"
    )
    GONE = (
        f"{stamp(1200, 'TP0')} Decode transfer failed for request rank=0 decode_req.req.rid='{{}}' "
        "decode_req.req.bootstrap_room={} with exception KVTransferError(bootstrap_room={}): Aborted by AbortReq.\n"
    )

    @pytest.mark.parametrize(("room", "shared"), [(8, True), (9, False)])
    def test_one_that_another_has_too_is_of_several_answers(self, room, shared):
        first = found_in([decode(1100, rank="TP0"), self.LATE.format("a" * 9), self.GONE.format("b" * 9, room, room)])[
            0
        ]
        assert ("shared one bootstrap_room (8)" in first.cause) is shared
        assert first.advice[0].startswith("requests with n above 1") is shared


class TestWhatSamplingSaw:
    ASSERTED = (
        "/pytorch/TensorCompare.cu:112: _assert_async_cuda_kernel: block: [0,0,0], thread: [0,0,0] Assertion "
        "`probability tensor contains either `inf`, `nan` or element < 0` failed.\n"
    )
    DIED = death(3, "torch.AcceleratorError: CUDA error: device-side assert triggered")

    def test_a_grammar_that_leaves_no_token_looks_alike(self):
        finding = only([started(reasoning_parser="kimi_k2"), decode(1), self.ASSERTED, self.DIED])
        assert "what a grammar left of them" in finding.cause
        assert finding.confidence is Confidence.LIKELY

    def test_a_kernel_that_failed_before_is_the_beginning(self):
        kernel = "CUDA_ERROR_INVALID_VALUE /workspace/include/flashinfer/trtllm/fmha/fmhaKernels.cuh 328\n"
        found = found_in([decode(1), kernel, self.ASSERTED, self.DIED])
        assert found[0].advice[0].startswith("begin with line 2, where a kernel failed before, which")


def waits(lines: int, **values) -> list[str]:
    return [
        decode(second, **{"running": 16, "queued": 9, "full": 0.4, "swa": 0.4, **values}) for second in range(lines)
    ]


class TestRequestsThatAreHeldBack:
    LIMIT = started(model_path="m", max_running_requests=16)

    def test_the_limit_of_requests_is_named(self):
        finding = only([self.LIMIT, *waits(12)])
        assert "the limit of requests that run at once (16)" in finding.cause
        assert finding.confidence == Confidence.LIKELY
        assert "raise --max-running-requests" in finding.advice[0]

    def test_one_below_the_limit_is_the_one_in_chunks(self):
        finding = only([self.LIMIT, *waits(12, running=15, queued=1)])
        assert "one that is prefilled in chunks takes one" in finding.cause
        assert "SGLang 30294" in finding.advice[1]

    def test_each_rank_has_its_share(self):
        asked = started(model_path="m", max_running_requests=128, dp_size=8, enable_dp_attention=True)
        assert "(16)" in only([asked, *waits(12, rank="DP0 TP0")]).cause

    def test_without_a_limit_that_is_reached_it_is_only_possible(self):
        finding = only(waits(12))
        assert (finding.confidence, "--schedule-conservativeness" in finding.advice[0]) == (Confidence.POSSIBLE, True)

    @pytest.mark.parametrize(
        "lines",
        [
            pytest.param(waits(8), id="few lines"),
            pytest.param(waits(12, queued=1), id="one that has only just come"),
            pytest.param(waits(12, full=0.95, swa=0.95), id="a full pool"),
            pytest.param([*waits(6), *waits(6, running=4)], id="batches of all sizes"),
            pytest.param([*waits(6), *waits(6, queued=0)], id="a queue that empties"),
        ],
    )
    def test_what_is_not_told(self, lines):
        assert found_in(lines) == ()


class TestRanksThatAreUneven:
    @staticmethod
    def lines(*running: int) -> list[str]:
        each = enumerate(running)
        return [decode(second, running=count, rank=f"DP{at} TP{at}") for at, count in each for second in range(9)]

    def test_the_fullest_and_the_emptiest_are_named(self):
        asked = started(model_path="m", enable_dp_attention=True)
        finding = only([asked, *self.lines(60, 4, 5)])
        assert "DP0 TP0 runs 60 on the mean, DP1 TP1 4, and with attention data parallelism" in finding.cause

    @pytest.mark.parametrize("running", [(60, 40, 5), (12, 1), (60,)])
    def test_what_is_not_told(self, running):
        assert found_in(self.lines(*running)) == ()


def moving(second: int, running: int, transfers: int) -> str:
    return decode(second, running=running).replace("cuda graph:", f"#transfer-req: {transfers}, cuda graph:")


class TestKvThatIsWaitedFor:
    def test_a_decode_server_that_mostly_waits_is_told(self):
        finding = only([moving(second, 20, 90) for second in range(10)])
        assert "up to 90 at once" in finding.cause
        assert "#inflight-req" in finding.advice[0]

    @pytest.mark.parametrize(("running", "transfers"), [(20, 19), (2, 7), (20, 0)])
    def test_what_is_not_told(self, running, transfers):
        assert found_in([moving(second, running, transfers) for second in range(10)]) == ()


def test_drafts_that_fell_as_weights_were_updated_are_told_so():
    fell = [*steady(40), f"{stamp(41)} Cache flushed successfully!\n", *steady(40, 42, accept=1.2)]
    assert any("SGLang 27718" in line for line in only(fell).advice)
    assert not any("SGLang 27718" in line for line in only([*steady(40), *steady(40, 42, accept=1.2)]).advice)


def test_a_router_that_speaks_grpc_to_an_http_server_is_told():
    failed = 'gRPC health RPC error for grpc://10.0.0.1:1: Status { message: "h2 protocol error: FRAME_SIZE_ERROR" }'
    finding = only([f"2025-10-16 10:00:05  WARN sglang_router_rs::core::worker: {failed}\n"])
    assert (finding.rule, "--grpc-mode" in finding.advice[0]) == ("router", True)


def test_images_without_a_mark_in_the_prompt_are_a_templates_doing():
    counts = "num_mm_tokens_in_input_ids=0 vs num_mm_tokens_in_embedding=324"
    finding = only([decode(1), death(2, f"RuntimeError: Insufficient multimodal embedding length: {counts}")])
    assert "--chat-template of this model" in finding.advice[0]


def test_a_form_that_drafts_do_not_serve_is_a_refusal():
    said = "DFLASH speculative decoding does not support grammar-constrained decoding yet."
    facts = read_log("log", [f"{stamp(1)} Error in request: {said}\n{decode(2)}".encode()])
    assert findings(facts) == ()
    assert "without --speculative-algorithm" in next(refused(facts)).look


class TestAnEarlierBuildThatWasWell:
    SLOW = "# decoding is three times slower\n"

    @pytest.mark.parametrize(
        "note",
        [
            "# An image from two weeks before is fast.\n",
            "# the previous release works well\n",
            "# images of early July never did it\n",
            "# the image of 1 July (another flashinfer) never did\n",
            "# the nightly of 2026-07-01 is fine\n",
            "# it is fine on the old build\n",
            "# since the update of this week\n",
        ],
    )
    def test_it_is_gone_back_to_before_any_option_is_tried(self, note):
        (found,) = found_in([self.SLOW, note, started(model_path="m", speculative_algorithm="EAGLE"), *steady(3)])
        assert found.rule == "noted-trouble"
        assert found.advice[0].startswith("with the build ")
        assert "git bisect" in found.advice[1]

    @pytest.mark.parametrize(
        "note",
        ["# after the update of the driver too\n", "# after upgrading it is gone\n", "# image v0.5.9, old prompts\n"],
    )
    def test_another_note_of_a_build_is_none_of_that(self, note):
        (found,) = found_in([self.SLOW, note, started(model_path="m", speculative_algorithm="EAGLE"), *steady(3)])
        assert "with the build " not in "\n".join(found.advice)

    def test_behind_an_end_it_stands_behind_its_own_first_advice(self):
        end = death(5, "RuntimeError: something of ours broke", frame="models/m.py")
        alone = found_in([started(model_path="m"), *steady(3), end])[0]
        beside = found_in([started(model_path="m"), *steady(3), end, "# the previous release works well\n"])[0]
        assert beside.advice[0] == alone.advice[0]
        assert beside.advice[1].startswith("with the build that was well by a note")


class TestVariablesBesideAStartLine:
    WRONG = "# both adapters give gibberish\n"

    @pytest.mark.parametrize(
        "note", ["# environment: {}\n", "# env {}\n", "# server environment: {}\n", "export {}\n", "# {}\n"]
    )
    def test_they_are_this_servers(self, note):
        given = note.format("SGLANG_EXPERIMENTAL_LORA_OPTI=1")
        (found,) = found_in([self.WRONG, started(model_path="m"), given, *steady(3)])
        assert found.advice[0].startswith("without SGLANG_EXPERIMENTAL_LORA_OPTI in its environment")

    def test_those_of_another_try_are_not(self):
        tried = "# same command with SGLANG_EXPERIMENTAL_LORA_OPTI=1 changes nothing\n"
        (found,) = found_in([self.WRONG, started(model_path="m"), tried, *steady(3)])
        assert "SGLANG_EXPERIMENTAL_LORA_OPTI" not in "\n".join(found.advice)
