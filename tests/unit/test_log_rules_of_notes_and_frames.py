"""What notes, frames and lines of a compiler say beside an end, and what notes alone say of trouble."""

import pytest

from gemma4_triage.finding import Confidence
from made_logs import decode, died_in, found_in, stamp, steady

START = "$ python -m sglang.launch_server --model-path google/gemma-4-E2B-it\n"
READY = f"{stamp(1)} The server is fired up and ready to roll!\n"
UNSET = "AttributeError: 'GenerateReqInput' object has no attribute 'is_single'\n"
HEADER = "/tmp/tmpx/main.c:5:10: fatal error: Python.h: No such file or directory\n"
CUT = 'Exception in run_tp_server:\nTraceback (most recent call last):\n  File "sglang/srt/models/m.py", line 6, in f\n'
LEFT = (
    '  File "sglang/srt/managers/tokenizer_manager.py", in _stream_one_response\n    await request.is_disconnected()\n'
)
TREE = (
    "server_args: --model-path m --speculative-algorithm EAGLE3 --attention-backend fa3 --speculative-eagle-topk {}\n"
)
ILLEGAL = "torch.AcceleratorError: CUDA error: an illegal memory access was encountered"
WORKS = (
    "RuntimeError: The Inner error is reported as above, and the current working operator name is aclnnFusedInferV3.\n"
)


def advice(lines) -> str:
    return "\n".join(found_in(lines)[0].advice)


def test_without_a_frame_nobody_knows_whose_call_it_was():
    (first, *_) = found_in(["ERROR:    Exception in background task\n", UNSET])
    assert "no frame here says whose call that was" in first.cause
    assert first.confidence is Confidence.POSSIBLE
    assert first.cause.startswith("A task in the background ended of AttributeError")
    assert "was not done, though the call that began it" in first.advice[0]
    assert found_in([UNSET])[0].advice[0].startswith("a later release of SGLang; the frames above that line")


def test_a_frame_of_a_caller_still_says_so():
    frame = 'Traceback (most recent call last):\n  File "/opt/trainer/rollout.py", line 3, in <module>\n    run()\n'
    (first, *_) = found_in([frame, UNSET])
    assert "that code was written for another one" in first.cause


def test_a_header_that_lacks_leads_over_a_traceback_that_is_cut_off():
    (first, *_) = found_in([HEADER, "compilation terminated.\n", CUT])
    assert first.rule == "wheels-do-not-fit"
    assert first.advice[0].startswith("install build-essential and python3-dev")


def test_a_traceback_that_is_whole_says_more_than_a_compiler_before_it():
    log = died_in("models/m.py forward", last="ValueError: the shapes differ")
    assert found_in([HEADER, log])[0].rule != "wheels-do-not-fit"


def test_a_task_that_was_cancelled_is_named_before_an_end_that_a_note_tells_of():
    end = "# the whole server process is gone afterwards\n"
    (first, *_) = found_in([START, LEFT, "asyncio.exceptions.CancelledError\n", end])
    assert "CancelledError) in tokenizer_manager.py:? _stream_one_response" in first.cause
    assert "clients and proxies that wait longer" in first.advice[0]
    assert "CancelledError" not in found_in([START, end])[0].cause


@pytest.mark.parametrize(
    ("file", "other"), [("intel_amx", "torch_native"), ("triton", "flashinfer, fa3"), ("flashattention", "triton")]
)
def test_a_frame_without_its_function_names_the_backend_that_the_log_ends_in(file, other):
    frame = f'  File "/o/sglang/srt/layers/attention/{file}_backend.py", line 140\n    extend_attention_fwd\n'
    first = advice([START, READY, frame, "# server dies on its own warm-up request\n"])
    name = "fa3" if file == "flashattention" else file
    assert first.startswith(f"once with another --attention-backend than {name} ({other})")
    assert "happens by" not in first


def test_a_frame_whose_path_is_looked_for_elsewhere_is_a_frame():
    frames = (
        '  File "/x/site-packages/torch_npu/npu/graphs.py", line 75, in graph_task_update_end\n    update(stream)\n'
    )
    assert advice([frames, WORKS]).startswith("once with --disable-cuda-graph")
    assert "--max-running-requests" in advice(['  File "/x/site-packages/torch/ops.py", line 7, in call\n', WORKS])


class TestSplitServers:
    COMMAND = "$ python -m sglang.launch_server --model-path m --disaggregation-mode {}\n"
    PREFILL = "# prefill pod was killed while requests were in KV transfer\n"
    KILLED = "# kubernetes then kills the decode pod as well\n"

    def test_a_decode_server_that_ends_behind_its_prefill_server(self):
        (first, *_) = found_in([self.COMMAND.format("decode"), self.PREFILL, self.KILLED])
        assert first.advice[0].startswith("restart this decode server too, behind a prefill server that was lost")
        assert "SGLANG_DISAGGREGATION_WAITING_TIMEOUT" in first.advice[1]

    def test_one_alone_is_no_such_case(self):
        assert "behind a prefill server" not in advice([self.COMMAND.format("decode"), self.KILLED])
        assert "behind a prefill server" not in advice([START, self.PREFILL, self.KILLED])

    def test_another_server_that_was_killed_is_no_end_of_this_one(self):
        assert found_in([self.COMMAND.format("decode"), READY, self.PREFILL]) == ()


class TestOneWaitsForAnother:
    COMMAND = "$ python -m sglang.launch_server --model-path m --max-running-requests {}\n"
    NOTE = "# the 4th gets its first token only when one of the three has ended\n"

    def test_below_the_limit_a_flag_is_suspected_and_no_memory(self):
        lines = [self.COMMAND.format(4), decode(1, running=3, queued=1), decode(2, running=3, queued=1), self.NOTE]
        (first, *_) = found_in(lines)
        assert (first.rule, "requests to it, stand" in first.cause) == ("noted-silence", True)
        assert first.advice[0].startswith("line 3 has 3 running and 1 waiting, and the limit is 4")

    def test_at_the_limit_it_is_not(self):
        lines = [self.COMMAND.format(3), decode(1, running=3, queued=1), decode(2, running=3, queued=1), self.NOTE]
        assert "batch_is_full" not in advice(lines)

    def test_a_server_that_stands_is_another_matter(self):
        lines = [self.COMMAND.format(4), decode(1, running=3, queued=1), "# hangs from here on\n"]
        assert "batch_is_full" not in advice(lines)


def test_a_context_that_is_only_said_to_be_longer_than_the_pool_is_read():
    note = "# the same line for ever, no Prefill batch\n"
    pool = "max_total_num_tokens=4096, page_size=2, context_len {} 4096\n"
    assert "may ask for more than 4096" in advice([pool.format(">"), note])
    assert "may ask for" not in advice([pool.format("<"), note])


@pytest.mark.parametrize("model", ["google/gemma-3-27b-it", "<fine-tune of gemma-3>", "gemma3_tuned"])
def test_gemma_3_is_known_by_its_name_whatever_stands_behind_it(model):
    lines = [f"$ python -m sglang.launch_server --model-path {model}\n", READY, "# answers turn into garbage\n"]
    assert "no window for Gemma-3" in advice(lines)


@pytest.mark.parametrize("model", ["google/gemma-3n-E2B-it", "google/gemma-4-E2B-it"])
def test_of_other_models_its_window_is_not_told(model):
    lines = [f"$ python -m sglang.launch_server --model-path {model}\n", READY, "# answers turn into garbage\n"]
    assert "no window for Gemma-3" not in advice(lines)


def test_answers_that_are_wrong_beyond_a_length_lead_to_what_changes_with_length():
    note = "# short prompts are good; as soon as prompt + answer pass about 2k tokens the answer is garbage\n"
    assert "above the longest prompt" in advice([START, READY, note])
    assert "above the longest prompt" not in advice([START, READY, "# the answer is garbage\n"])


@pytest.mark.parametrize(("topk", "told"), [(8, True), (1, False)])
def test_a_tree_of_drafts_is_left_out_before_drafts_are(topk, told):
    lines = [TREE.format(topk), died_in("managers/scheduler.py run_batch", last=ILLEGAL)]
    assert advice(lines).startswith("once with --speculative-eagle-topk 1") is told


def test_a_kernel_of_triton_beside_a_number_of_tokens_counts_in_32_bits():
    log = died_in("layers/attention/triton_ops/extend_attention.py extend_attention_fwd", last=ILLEGAL)
    note = "# 513 sequences of 512 tokens in one extend; 512 sequences are fine\n"
    assert advice([note, log]).startswith("fewer tokens in one prefill batch")
    assert advice([log]).find("fewer tokens in one prefill batch") > 0
    other = died_in("layers/quantization/fp8.py apply", last=ILLEGAL)
    assert "fewer tokens in one prefill batch" not in advice([note, other])


def test_a_part_of_a_package_lacks_where_the_package_is_there():
    part = died_in("managers/m.py start", last="ModuleNotFoundError: No module named 'vllm.model_executor.metadata'")
    assert found_in([part])[0].cause.startswith("vllm is installed here")
    whole = died_in("managers/m.py start", last="ModuleNotFoundError: No module named 'vllm'")
    assert "is not installed" in found_in([whole])[0].cause


def test_kernels_that_no_library_has_for_a_newer_gpu():
    said = "ImportError: [sgl_kernel] CRITICAL: Could not load any common_ops library!\n\nGPU Info:\n"
    assert "built from source here, for 121" in advice([f"{said}- Compute capability: 121\n"])
    assert "built from source" not in advice([f"{said}- Compute capability: 90\n"])


def test_a_port_that_nobody_is_seen_to_have_may_be_too_high():
    last = "AttributeError: 'NoneType' object has no attribute 'pid'"
    assert "some hundreds below 65535" in advice([died_in("utils/common.py wait_port_available", last=last)])
    assert "65535" not in advice([died_in("utils/common.py kill_process_tree", last=last)])


SEEN = {
    "answers are wrong, repeat themselves or differ": (
        "degenerate text for every prompt",
        "single requests look fine, images of batched requests are badly degraded",
        "the scores differ wildly from those of the same model on another server",
        "the answers are chains of token 0",
        "gsm8k 0.005, invalid 0.985",
        "the request goes on generating to its end",
        "a needle is missed when the same prompt comes back from the host",
        "temperature 1: 'Expossible! description!'; temperature 0.2: fine",
        "answers are cut off",
        "generation stops in the middle",
        "it keeps repeating itself",
        "the model never stops",
        "output becomes corrupt after 20 turns",
        "logprobs do not match those of another engine",
        "accuracy drops from 0.82 to 0.61",
        "same prompt gives different results",
        "the adapter has no effect",
        "images are ignored",
        "weights are not updated",
    ),
    "tool calls, thoughts or JSON are missing or in the wrong place": (
        "tool calls are dropped",
        "with a schema the answer is free text",
        "tool calls come back as plain text",
        "the JSON schema is not respected",
        "thinking tokens leak into the content",
    ),
    "it is slow": (
        "answers are right but no faster than without drafts",
        "gsm8k 0.965, but drafts hardly help" + "s",
        "requests of a high priority wait; nothing is preempted",
        "TTFT is 30 seconds",
        "takes minutes for a single request",
        "performance regressed after the upgrade",
        "cached tokens is always 0",
        "the queue grows",
    ),
    "memory grows while it serves": ("nvidia-smi shows the KV memory still in use", "RSS keeps increasing"),
    "requests fail, or their answers break off": (
        "every later request fails",
        "now and then one request fails mid-stream, the server goes on",
        "24 other users were dropped with it",
        "the same conversation twenty times, all 500",
        "clients see 502 Bad Gateway",
        "returns 400 Bad Request",
        "requests are rejected",
        "client: httpx.ReadTimeout",
        "curl: (52) Empty reply from server",
    ),
}


@pytest.mark.parametrize(("seen", "note"), [(seen, note) for seen, notes in SEEN.items() for note in notes])
def test_trouble_that_a_note_tells_of_is_a_finding(seen, note):
    (first, *_) = found_in([START, *steady(3), f"# {note}\n"])
    assert first.rule == "noted-trouble"
    assert seen in first.cause
    assert first.advice


@pytest.mark.parametrize(
    "note",
    [
        "the server does not start",
        "fails to start with tp 8",
        "start fails right after this",
        "CrashLoopBackOff",
        "both ranks die",
        "restarts in a loop",
    ],
)
def test_a_start_that_fails_by_a_note_is_an_end(note):
    lines = [START, f"# {note.replace('both ranks', 'all ranks')}\n"]
    assert found_in(lines)[0].rule == "other-crash"
    assert ("did not come up" in found_in(lines)[0].cause) is ("start" in note and "restart" not in note)


def test_a_pod_that_a_probe_restarts_leads_to_the_probe():
    assert "Liveness probe failed" in advice([START, "# pods get restarted by the liveness probe under long prompts\n"])


@pytest.mark.parametrize(
    "note",
    [
        "every request is answered, also the one with six images",
        "the first request fails over to the other node as it should",
        "no request fails, all are answered with 200",
        "gsm8k 0.965, as in the table of the model's card",
        "a short prompt, then one of more than 2k tokens: both right",
        "the server starts in 40 s, with --tp 2 in 25 s",
        "nvidia-smi shows 60 GiB in use, as asked for",
        "accept length 2.8, about as in the release before",
        "the benchmark ends after 4 minutes; the stream of each answer is whole",
        "all 500 requests of the set are answered",
        "returns 200 for each of the 400 prompts",
        "memory grows at first and then stays",
        "prompts are cut off at 8k by the client",
        "server shuts down cleanly on SIGTERM",
        "the old server is gone, this is the new one",
        "no slowdown after the upgrade",
        "TTFT is 0.3 s at 64 clients",
        "the server is restarted every night at 3",
    ],
)
def test_notes_of_what_is_well_are_none(note):
    assert found_in([START, READY, *steady(3), f"# {note}\n"]) == ()


ORPHAN = "[2026-08-25 10:12:07] Received output for rid='b1d0d8c2' but the state was deleted in TokenizerManager.\n"


def test_outputs_that_nobody_takes_are_told_where_others_wait_by_a_note():
    waits = "# about 15 such lines a second; new requests only wait in the queue\n"
    assert found_in([START, READY, *[ORPHAN] * 3, waits])[0].rule == "orphaned-requests"
    assert found_in([START, READY, *[ORPHAN] * 3]) == ()


@pytest.mark.parametrize(("answer", "wrong"), [("claus claus claus claus c", True), ("very very good", False)])
def test_a_word_that_an_answer_repeats_is_trouble(answer, wrong):
    found = found_in([START, READY, f'# every answer is "{answer}..."\n'])
    assert [one.rule for one in found] == ["noted-trouble"] * wrong
