"""Refusals, tries and images that stand beside a log: what each says, and where none does."""

import pytest

from gemma4_triage.finding import Confidence
from gemma4_triage.logs.read import read_log
from gemma4_triage.logs.rules.refused_by_check import refused
from gemma4_triage.logs.suspects import suspects
from made_logs import MADE, SESSION, death, decode, found_in, only, prefill, stamp, started, told

BODY = '{"error":{"message":"%s","type":"invalid_request_error","code":%d}}\n'
COUNTS = (
    "Requested token count exceeds the model's maximum context length of 32768 tokens. You requested a total of 33000 "
    "tokens: {} tokens from the input messages and {} tokens for the completion."
)
UP = f"{stamp(9)} The server is fired up and ready to roll!\n"
IMAGE = "$ docker run --gpus all lmsysorg/sglang:{} sglang serve --model-path m {}\n"
SCALE = "AttributeError: 'BlockScaleParameter' object has no attribute 'format_ue8m0'"
WATCHDOG = f"{stamp(400)} Scheduler watchdog timeout (self.watchdog_timeout=300, self.soft=False)\n"
TRIED = "backend={}  flashinfer.utils.BackendSupportedError: mm_fp4 does not support backend '{}' with capability 120\n"
ABORTED = f"{stamp(1)} Request is disconnected from the client side. Abort request obj.rid='5c1e8e1f53f0'\n"
LATE = f"{stamp(301)} Decode transfer failed for request rank=0 decode_req.req.rid='{{}}' with exception "
LATE += "KVTransferError(bootstrap_room=7): Request 7 timed out after 300.0s in KVPoll.WaitingForInput\n"


def read(*lines: str):
    return read_log("server.log", ["".join(lines).encode()])


def reasons(*lines: str) -> list[str]:
    return [one.why for one in refused(read(*lines))]


def test_the_body_of_a_refusal_is_its_reason():
    line = f'{stamp(3)} INFO:  10.0.0.7:1 - "POST /generate HTTP/1.1" 400 Bad Request\n'
    assert "reason stands in the answer" in reasons(decode(1), line)[0]
    assert (
        "model that this server does not have"
        in reasons(decode(1), line, BODY % ("The model m does not exist", 400))[0]
    )
    assert "reason stands in the answer" in reasons(decode(1), line, BODY % ("The model m does not exist", 500))[0]


@pytest.mark.parametrize(
    ("prompt", "answer", "what"),
    [
        (400, 32600, "the room that they ask for"),
        (400, 32747, "took the prompt for 21 tokens"),
        (30000, 3000, "longer than the context"),
    ],
)
def test_what_is_too_long_is_told_by_its_counts(prompt, answer, what):
    assert what in reasons(decode(1), BODY % (COUNTS.format(prompt, answer), 400))[0]


def test_a_room_that_somebody_chose_was_not_worked_out():
    assert "worked it out" not in reasons(decode(1), BODY % (COUNTS.format(400, 32600), 400))[0]


def test_a_session_in_which_a_turn_runs_is_busy():
    assert found_in([decode(9, running=1), SESSION]) == ()


def test_a_prefill_of_the_turn_itself_leaves_open_whether_the_session_is_busy():
    assert only([decode(1, running=1), decode(9, running=0), SESSION]).confidence is Confidence.LIKELY
    first = prefill(1).replace("#running-req: 4", "#running-req: 0")
    assert only([started(), first, SESSION]).confidence is Confidence.POSSIBLE


def test_blocks_are_kept_where_a_transfer_failed_alone():
    assert "blocks-kept" not in {one.rule for one in found_in([*MADE["blocks-kept"][:1], *MADE["blocks-kept"][2:]])}


def test_what_an_attribute_is_called_is_no_format():
    finding = only([started(quantization="humming"), death(1, SCALE, frame="srt/models/m.py", function="load_weights")])
    assert (finding.rule, "DeepGEMM" in finding.cause) == ("quantised-kernel", False)
    assert "--quantization humming do not have" in finding.cause


def test_of_two_images_the_one_that_serves_is_to_be_kept():
    failed = death(1, "KeyError: 'layer_9'")
    later = only([IMAGE.format("v0.5.20", ""), failed, IMAGE.format("v0.5.19", ""), UP])
    assert later.advice[0].startswith("stay with v0.5.19")
    earlier = only([IMAGE.format("v0.5.19", ""), UP, IMAGE.format("v0.5.20", ""), failed])
    assert earlier.advice[0].startswith("stay with v0.5.19")
    other = only([IMAGE.format("v0.5.20", ""), failed, IMAGE.format("v0.5.19", "--tp 2"), UP])
    assert "stay with" not in told(other)


def test_a_nightly_is_named_where_nothing_says_why():
    finding = only([IMAGE.format("nightly-dev-20260711", ""), decode(1), WATCHDOG])
    assert "the day before nightly-dev-20260711" in finding.advice[0]
    assert "the day before" not in told(only([IMAGE.format("v0.5.9", ""), decode(1), WATCHDOG]))
    memory = death(2, "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.")
    assert "the day before" not in told(only([IMAGE.format("nightly-dev-20260711", ""), decode(1), memory]))


def test_backends_that_were_tried_are_told_together():
    finding = only([TRIED.format("trtllm", "trtllm"), TRIED.format("cudnn", "cudnn")])
    assert finding.advice[0].startswith("not the next backend of the same release")


def test_an_abort_is_told_where_the_request_that_timed_out_is_its():
    assert "WAITING_TIMEOUT on the decode servers" in told(only([ABORTED, decode(2), LATE.format("5c1e8e1f53f0")]))
    assert "decode server was not told" not in told(only([ABORTED, decode(2), LATE.format("90d2b7ccf2a2")]))


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        (r'{"id":null,"function":{"name":null,"arguments":"{\"path\": \"a\"{\"path\": \"a\"}"}}', True),
        (r'{"function":{"name":"f","arguments":"{\"path\": \"a\", \"other\": {\"b\": 1}}"}}', False),
        (r'{"function":{"name":"f","arguments":"{\"path\": \"a\", \"within\": {\"path\": \"b\"}}"}}', False),
    ],
)
def test_arguments_that_begin_anew_are_shown(line, shown):
    ids = [one.id for one in suspects(read(decode(1), f" {line}\n"))]
    assert ("arguments-twice" in ids) is shown


def test_arguments_of_any_depth_are_read():
    deep = r"{\"a\":" * 1_100
    read(decode(1), f' {{"function":{{"name":"f","arguments":"{deep}"}}}}\n')


@pytest.mark.parametrize(("name", "shown"), [("strng", True), ("string", False)])
def test_a_type_that_no_schema_has_is_shown(name, shown):
    # What stands behind the schema has types of its own.
    asked = '$ curl s -d {"response_format":{"type":"json_schema","json_schema":{"schema":{"type":"%s"}}},'
    asked += '"thinking":{"type":"enabled"}}\n'
    ids = [one.id for one in suspects(read(decode(1), asked % name))]
    assert ("schema-of-no-type" in ids) is shown


def test_an_exception_of_a_client_ends_no_server():
    assert found_in([decode(1), "AI_JSONParseError: JSON parsing failed: Unexpected token at position 32\n"]) == ()


@pytest.mark.parametrize(
    "said",
    [
        "FileNotFoundError: [Errno 2] No such file or directory: '/opt/rocm/bin/hipcc'",
        "RuntimeError: ninja exited with status 1\nFAILED: a.o\n/bin/sh: 1: /opt/rocm/bin/hipcc: not found",
    ],
)
def test_a_compiler_of_another_platform_is_named(said):
    finding = only([death(1, said, frame="srt/layers/quantization/awq.py")])
    assert finding.cause.startswith("The build calls /opt/rocm/bin/hipcc, the compiler of AMD's ROCm")


def test_graphs_of_prefills_are_named_where_memory_runs_out():
    took = f"{stamp(0)} Capture prefill cuda graph end. Time elapsed: 31.20 s. mem usage=2.07 GB. avail mem=1.24 GB.\n"
    ended = death(2, "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.")
    assert "gives back the 2.07 GB" in told(only([took, decode(1), ended]))


@pytest.mark.parametrize(("words", "found"), [("case 3:", 1), ("case 3 is skipped:", 0)])
def test_an_exception_behind_somebodys_words_is_a_failure(words, found):
    assert len(found_in(["GPU: NVIDIA RTX\n", f"{words} flashinfer.utils.BackendError: no plan\n"])) == found
