"""Servers that stand, and drafts that are not accepted, by the lines in which engines count their requests."""

import pytest

from made_logs import found_in, only, told


def of_vllm(minute: int, running: int, waiting: int, *, engine: int = 0) -> str:
    rate = 40.5 * running
    return (
        f"(APIServer pid=1) INFO 06-12 09:{minute:02}:11 [loggers.py:259] Engine {engine:03}: Avg prompt throughput: "
        f"{rate} tokens/s, Avg generation throughput: {rate} tokens/s, Running: {running} reqs, Waiting: {waiting} "
        "reqs, GPU KV cache usage: 61.4%, Prefix cache hit rate: 0.0%\n"
    )


def test_vllm_stands_where_requests_wait_and_none_runs():
    stands = [of_vllm(minute, 0, 2) for minute in (1, 2, 3)]
    finding = only([of_vllm(0, 2, 0), *stands])
    assert (finding.rule, finding.confidence) == ("queue-stands", "likely")
    assert "61% of the KV cache is held" in told(finding)
    # Another engine that is idle takes nothing back.
    others = [of_vllm(minute, 0, 0, engine=1) for minute in (1, 2, 3)]
    assert only([line for pair in zip(stands, others, strict=True) for line in pair]).rule == "queue-stands"


@pytest.mark.parametrize(
    "lines",
    [
        [of_vllm(minute, 0, 0) for minute in range(9)],
        [of_vllm(minute, 3, 2) for minute in range(9)],
        [of_vllm(minute, 0, 2) for minute in (1, 2)],
        [of_vllm(1, 0, 2)] * 3,
        [*(of_vllm(minute, 0, 2) for minute in (1, 2, 3)), of_vllm(4, 2, 0)],
    ],
    ids=["idle", "busy", "two-lines", "at-once", "runs-again"],
)
def test_vllm_that_is_idle_or_runs_does_not_stand(lines):
    assert found_in(lines) == ()


def test_sglang_stands_where_its_lines_have_none_running_and_some_waiting():
    line = "[2026-11-24 03:0{}:00] Decode batch, #running-req: 0, #token: 9, token usage: 0.50, gen throughput "
    line += "(token/s): 0.00, #queue-req: {}\n"
    assert only([line.format(minute, 2) for minute in range(3)]).rule == "queue-stands"
    assert found_in([line.format(minute, 0) for minute in range(3)]) == ()


DRAFTS = "INFO 06-25 20:14:17 [metrics.py:100] SpecDecoding metrics: Mean acceptance length: {}, {}Per-position "
DRAFTS += "acceptance rate: {}\n"


def test_drafts_of_vllm_that_are_hardly_accepted():
    lines = [
        DRAFTS.format(2.23, "", "0.600, 0.385, 0.215, 0.031"),
        DRAFTS.format(1.27, "", "0.242, 0.030, 0.000, 0.000"),
    ]
    finding = only(lines)
    assert (finding.rule, finding.confidence) == ("drafts-never-accepted", "possible")
    assert "num_speculative_tokens" in told(finding)


@pytest.mark.parametrize(
    "said",
    [
        (2.23, "", "0.600, 0.385, 0.215, 0.031"),
        (1.3, "", "0.200, 0.060, 0.030, 0.010"),
        (1.33, "", "0.333, 0.000, 0.000, 0.000"),
        (1.2, "Accepted: 2 tokens, Drafted: 40 tokens, ", "0.200, 0.000, 0.000, 0.000"),
        (1.2, "", "0.200"),
    ],
    ids=["long", "later-ones", "few-drafts", "few-tokens", "one-position"],
)
def test_drafts_of_vllm_that_are_accepted_or_few(said):
    assert found_in([DRAFTS.format(*said)]) == ()
