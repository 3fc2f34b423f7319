"""Lines that say what failed, is missing or is refused, behind the prefixes and levels of programs of all kinds."""

import pytest

from gemma4_triage.finding import Confidence
from gemma4_triage.logs.read import read_log
from made_logs import decode, found_in, only, prefill, stamp, told

TORN = '  File "/srv/sglang/srt/models/deepseek_v2.py", line 7, in forward\n    step()\n'
NO_FP8 = "type fp8e4nv not supported in this architecture. The supported fp8 dtypes are ('fp8e4b15', 'fp8e5')"
OF_TORCH = "(head, rank=0, pid=82) [rank5]:W0215 12:25:06.525000 147 torch/wrap.py:504] [12/0_1] "
OF_A_WORKER = "(VllmWorker rank=3) ERROR 05-02 03:11:40 "
BLOCKS = "The output_size of gate's and up's weight = 192 is not divisible by weight quantization block_n = 128."
BFLOAT = "Bfloat16 is only supported on GPUs of 8.0. You can use float16 instead by setting dtype."
UP = f"{stamp(1)} INFO:     Uvicorn running on http://0.0.0.0:25600 (Press CTRL+C to quit)\n"
PROXIED = '{} http://10.0.0.9:3138 "GET http://0.0.0.0:25600/get_model_info HTTP/1.1" {} 3582\n'


def test_an_exception_in_torchs_own_log_is_read():
    log = [f"{OF_TORCH}Traceback (most recent call last):\n"]
    log += [f"{OF_TORCH}AssertionError: fp8e4nv data type is not supported on CUDA arch < 89\n"]
    assert only(log).rule == "no-fp8"
    assert found_in([*log, prefill(3), decode(4)]) == ()


def test_an_exception_that_is_shown_as_python_shows_it_is_one():
    found = only([TORN, f'ValueError("{NO_FP8}")\n'])
    assert found.rule == "no-fp8"
    assert "deepseek_v2.py" in str(found.evidence[0].meaning)
    assert found_in([f'# ValueError("{NO_FP8}") is what others have\n', prefill(3), decode(4)]) == ()


def test_a_worker_that_names_its_rank_alone_is_read():
    log = [f"{OF_A_WORKER}Traceback (most recent call last):\n", f"{OF_A_WORKER}ValueError: {BLOCKS}\n"]
    found = only(["vllm serve /m --tensor-parallel-size 8\n", *log])
    assert found.rule == "uneven-split"
    assert "--enable-expert-parallel" in found.advice[0]
    assert "--ep of the same number" in only(log).advice[0]


def test_a_word_of_advice_in_an_exception_below_its_head_takes_nothing_back():
    ray = "(WorkerDict pid=18211) "
    log = [f"{ray}INFO config.py\n", f"{ray}Traceback (most recent call last):\n", f"{ray}ValueError: {BFLOAT}\n"]
    assert "--dtype float16" in told(only(log))
    assert found_in([f"{ray}ValueError: using float16 instead\n"]) == ()


MISSING = (
    "[TensorRT-LLM][ERROR] Assertion failed: no such engine",
    "[08/13/2025-05:12:33] [TRT-LLM] [E] no engine for this GPU",
    "2026-01-01 00:00:00,123 ERROR worker.py:400 -- a thing of nobody",
    "ERROR:sglang.srt.server:the model is gone",
    "(main, rank=1) RuntimeError('no way')",
    "Unable to load the tokenizer of /models/x",
    "Could not open /models/x/config.json",
    "bash: ./run.sh: No such file or directory",
    "libfoo.so.1 was not found",
    "Model architecture Foo is not supported",
    "The request was rejected by its server: no room",
    "curl: (22) The requested URL returned error: 403",
    "Error response from daemon: No such container: sglang",
    "Please install foo first",
    f"{stamp(2)} Hit invalid regex schema: regex=7",
    "ray.exceptions.RayTaskError(ValueError): ray::Worker.init()",
    f"{stamp(2)} Invalid state: 7",
    "Encountered an error: nobody answers",
    f"{stamp(2)} Error: the path is empty",
    f"{stamp(2, 'TP0')} AssertionError",
)


@pytest.mark.parametrize("line", MISSING)
def test_a_line_by_which_something_fails_is_a_finding_whoever_says_so(line):
    assert found_in([f"{line}\n"])
    assert found_in([f"{line}\n", prefill(3), decode(4)]) == ()


@pytest.mark.parametrize(
    "line",
    [
        "host:41:41 [2] NCCL INFO NET/Plugin: Could not find: libnccl-net.so.",
        "foo is not installed, falling back to bar",
        f"{stamp(2)} flash_attn is not supported on this GPU, using triton instead",
        "ERROR: pip's dependency resolver does not currently take into account all the packages",
        "0 errors were found",
        "INFO - Worker http://127.0.0.1:1 health check is pending with error: sending request",
        "# the needle could not be found in its answers, which is not supported by its text",
    ],
)
def test_what_is_done_without_is_no_finding(line):
    assert found_in([f"{line}\n"]) == ()


def test_a_proxy_that_is_asked_in_the_servers_place_is_one():
    found = only([UP, PROXIED.format(stamp(2), 403), PROXIED.format(stamp(3), 403)])
    assert (found.rule, found.confidence) == ("start-refused", Confidence.LIKELY)
    assert "HTTP proxy" in found.cause
    assert "no_proxy" in found.advice[0]
    assert found_in([UP, PROXIED.format(stamp(2), 200)]) == ()
    refused = f'{stamp(2)} INFO:     10.0.0.7:5 - "GET /get_model_info HTTP/1.1" 403 Forbidden\n'
    assert found_in([UP, refused, prefill(3), decode(4)]) == ()
    asked = f'{stamp(2)} HTTP Request: GET http://127.0.0.1:30000/health "HTTP/1.1 403 Forbidden"\n'
    assert "proxy" in only([asked]).cause


def test_a_note_whose_argument_stands_before_a_semicolon_is_read():
    facts = read_log("x", [b"# tp 4 --enable-hierarchical-cache ; GSM8K with 16 clients\n"])
    assert facts.arguments["enable_hierarchical_cache"] == "True"
