"""What numbers and warnings of a server tell that answers, and has a fault: each rule fires, and where it is silent."""

import pytest

from gemma4_triage.finding import Confidence
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
