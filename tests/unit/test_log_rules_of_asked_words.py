"""What an exception's own words ask for, and which failures are of a start, a request or nobody."""

import pytest

from gemma4_triage.logs.catalog import findings
from gemma4_triage.logs.read import read_log
from made_logs import stamp

HIT = "Scheduler hit an exception: Traceback (most recent call last):\n"
START = "$ python3 -m sglang.launch_server --model-path m {}\n"
VLLM = "$ vllm serve m\n"
TITLE = "pydantic_core._pydantic_core.ValidationError: 1 validation error for {}\n"


def first(*lines: str):
    return findings(read_log("server.log", ["".join(lines).encode()]))[0]


def raised(last: str, frame: str = "managers/scheduler.py run") -> str:
    path, name = frame.split()
    return f'{stamp(1)} {HIT}  File "/s/python/sglang/srt/{path}", line 12, in {name}\n    call()\n{last}\n\n'


@pytest.mark.parametrize(
    ("config", "reason", "word"),
    [
        ("VllmConfig", "max_num_scheduled_tokens is set to -1792, which allows none", "--max-num-seqs"),
        ("ModelConfig", "has model type `x_y` but Transformers does not recognize this", "first that has x_y"),
        ("SchedulerConfig", "max_num_partial_prefills must be greater than 0", "change the option"),
    ],
)
def test_a_configuration_that_is_refused_ends_a_start(config, reason, word):
    found = first(VLLM, TITLE.format(config), f"  Value error, {reason}\n")
    assert "start ended" in found.cause
    assert word in found.advice[0]


def test_a_request_that_is_refused_is_one():
    assert first(VLLM, TITLE.format("ChatCompletionRequest")).cause.startswith("Requests were refused")


def test_values_strung_together_are_of_a_parser():
    died = "json.decoder.JSONDecodeError: {}\n"
    assert "tool calls" in first(START, died.format("Extra data: line 1 column 35 (char 34)")).cause
    assert "tool calls" not in first(START, died.format("Expecting value: line 1 column 1 (char 0)")).cause


@pytest.mark.parametrize(
    ("given", "died", "frame", "advice"),
    [
        ("", "ValueError: Unsupported dtype: torch.float8_e4m3fn", "a.py run", "once with --kv-cache-dtype auto"),
        ("--dcp-size 8", "ValueError: not enough values", "models/forward_mla_rocm.py core", "once with --dcp-size 1"),
        (
            "",
            "ValueError: max_num_seqs (1024) exceeds available cache blocks (600).",
            "a.py run",
            "--max-num-seqs of at",
        ),
        (
            "",
            "ValueError: Only ['fa3', 'triton'] attention backends are supported for deterministic inference",
            "server_args.py check",
            "--attention-backend triton",
        ),
        (
            "--speculative-algorithm EAGLE",
            "AttributeError: 'NoneType' object has no attribute 'shape'",
            "speculative/eagle_draft_extend_cuda_graph_runner.py capture",
            "once with --disable-cuda-graph",
        ),
    ],
)
def test_the_words_and_the_start_say_what_to_set(given, died, frame, advice):
    assert first(START.format(given), raised(died, frame)).advice[0].startswith(advice)


TOO_LONG = (
    f"{stamp(2)} Input length (170312 tokens) exceeds the maximum allowed length (163834 tokens). "
    "Use a shorter input or enable --allow-auto-truncate.\n"
)
ANSWERED = f'{stamp(1)} INFO:     10.8.1.20:40444 - "POST /v1/chat/completions HTTP/1.1" 200 OK\n'


def test_a_prompt_that_is_too_long_is_a_failure_only_where_nobody_else_is_answered():
    assert findings(read_log("server.log", [(START.format("") + ANSWERED + TOO_LONG).encode()])) == ()
    assert first(START.format(""), TOO_LONG).rule == "refused-by-check"
