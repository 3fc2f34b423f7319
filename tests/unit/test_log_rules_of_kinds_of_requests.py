"""What requests and their kinds, notes of them, and both sides of a split say of a failure."""

import pytest

from gemma4_triage.finding import Confidence
from made_logs import PLACEHOLDERS, TRACEBACK, death, found_in, only, prefill, retraction, stamp, started, told

FAILED = """INFO:     127.0.0.1:52714 - "POST {} HTTP/1.1" 500 Internal Server Error
ERROR:    Exception in ASGI application
AttributeError: '{}' object has no attribute '{}'
"""
EMBEDDINGS = FAILED.format("/v1/embeddings", "EmbeddingReqInput", "image_data")


class TestAnotherKindOfRequest:
    @pytest.mark.parametrize(
        "start", ["python -m sglang.launch_server --model-path m --tp 4\n", started(model_path="m", is_embedding=False)]
    )
    def test_embeddings_of_a_server_that_generates(self, start):
        finding = only([start, EMBEDDINGS])
        assert finding.confidence is Confidence.LIKELY
        assert finding.advice[0].startswith("start it with --is-embedding")
        assert "defect" not in finding.cause

    def test_without_a_start_it_may_be_the_release(self):
        finding = only([EMBEDDINGS])
        assert finding.confidence is Confidence.POSSIBLE
        assert "or a defect of this release" in finding.cause
        assert "--is-embedding" in told(finding)

    def test_a_server_of_embeddings_is_not_told_to_become_one(self):
        finding = only([started(model_path="m", is_embedding=True), EMBEDDINGS])
        assert finding.confidence is Confidence.POSSIBLE
        assert "start it with --is-embedding" not in told(finding)

    def test_texts_of_a_server_of_embeddings(self):
        failed = FAILED.format("/generate", "GenerateReqInput", "dimensions")
        assert "/v1/embeddings" in told(only([started(model_path="m", is_embedding=True), failed]))

    def test_another_class_is_no_request(self):
        finding = only([FAILED.format("/generate", "MyProcessor", "image_token")])
        assert "another kind" not in finding.cause
        assert "not of the request" not in finding.cause


ORPHAN = f"{stamp(5)} Received output for rid='e71f27aa' but the state was deleted in TokenizerManager.\n"


class TestOutputsThatNobodyWaitsFor:
    @pytest.mark.parametrize(
        "note",
        ["# about 15 such lines a second for 15 minutes\n", "# GPU busy, both slots taken\n", "# new requests wait\n"],
    )
    def test_a_note_says_that_they_go_on(self, note):
        assert only([ORPHAN, ORPHAN, note]).rule == "orphaned-requests"

    def test_a_few_are_what_every_abort_leaves(self):
        assert found_in([prefill(1), ORPHAN, ORPHAN, "# the user pressed Esc\n"]) == ()


PICTURES = death(1, PLACEHOLDERS)


@pytest.mark.parametrize(
    ("note", "apart"),
    [
        ("# one message with a picture and a clip; pictures alone are answered\n", True),
        ("# one message with two pictures\n", False),
        ("# image sglang:dev, one video a request\n", False),
    ],
)
def test_pictures_beside_a_video_are_sent_apart(note, apart):
    finding = next(one for one in found_in([PICTURES, note]) if one.rule == "image-tokens")
    assert finding.advice[0].startswith("pictures and videos in requests of their own") == apart
    assert ("pictures and a video at once" in finding.cause) == apart


class TestAStepWithoutTokens:
    DIES = "# the scheduler dies in an extend batch\n"

    @pytest.mark.parametrize(
        "note", ["# RotaryEmbedding.forward got an empty positions tensor\n", "# the last batch without any token\n"]
    )
    def test_notes_of_it_lead_to_the_chunk_that_was_put_off(self, note):
        finding = only([started(swa_full_tokens_ratio=0.1), retraction(1), self.DIES, note.replace("any ", "")])
        assert finding.advice[0].startswith("a larger --swa-full-tokens-ratio than 0.1")
        assert "right behind a retraction" in finding.cause

    def test_a_note_of_something_else_does_not(self):
        finding = only([retraction(1), self.DIES, "# the queue was empty\n"])
        assert "without a token" not in finding.cause


NIXL = f"""E0713 nixl_agent.cpp:631] prepXferDlist: failed to prepare the descriptors
Exception in thread Thread-7 (bootstrap_thread):
{TRACEBACK}  ... prep_xfer_dlist("", src_array, ...)
NIXL_ERR_NOT_FOUND
"""
SIDE = "# {0}: --tp 4 {1} --disaggregation-mode {0} --disaggregation-transfer-backend nixl\n"


class TestNixl:
    def test_an_exception_of_its_name_alone_is_its_own(self):
        finding = only([NIXL])
        assert (finding.rule, finding.confidence) == ("kv-transfer", Confidence.LIKELY)
        assert "NIXL refused" in finding.cause

    @pytest.mark.parametrize(
        ("of_prefill", "said"),
        [("--dp 4 --enable-dp-attention", "1 at prefill, 4 at decode"), ("--dp 4", ""), ("", "")],
    )
    def test_sides_with_unlike_attention_are_named(self, of_prefill, said):
        finding = only([SIDE.format("prefill", of_prefill), SIDE.format("decode", ""), NIXL])
        assert ("other numbers of ranks" in finding.cause) == bool(said)
        assert said in finding.cause


SEGFAULT = "!!!!!!! Segfault encountered !!!!!!!\n"
NATIVE = '  File "<unknown>", line 0, in {}\n'


class TestTheStackOfASignal:
    @pytest.mark.parametrize(
        ("function", "said"),
        [
            ("cudaMemcpyBatchAsync", "SGLang 23136"),
            (
                "void transfer_kv_page_first_direct_impl<true>(std::vector<at::Tensor> const&, long)",
                "--hicache-io-backend",
            ),
            ("cuLaunchKernelEx", "built for another CUDA"),
        ],
    )
    def test_its_functions_name_what_to_do(self, function, said):
        assert said in only([SEGFAULT, NATIVE.format(function)]).advice[0]

    def test_other_functions_do_not(self):
        first = only([SEGFAULT, NATIVE.format("std::vector<int>::push_back(int)")]).advice[0]
        assert "CUDA" not in first or "built for another" not in first
