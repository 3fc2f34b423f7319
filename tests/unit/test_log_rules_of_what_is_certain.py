"""What is certain of a log only where nothing else is left: kills of others, one chunk in a pool, mended releases."""

import pytest

from gemma4_triage.finding import Confidence
from made_logs import found_in, prefill, stamp, steady

START = "$ python -m sglang.launch_server --model-path google/gemma-4-E2B-it\n"
READY = f"{stamp(1)} The server is fired up and ready to roll!\n"
OOM = "May 10 09:11:12 gpu kernel: Out of memory: Killed process 991 ({}) total-vm:9999kB, anon-rss:1kB\n"


@pytest.mark.parametrize(("name", "rules"), [("chrome", []), ("java", []), ("python3", ["killed-from-outside"])])
def test_a_kill_of_the_kernels_is_the_servers_where_it_names_one_of_its_processes(name, rules):
    assert [one.rule for one in found_in([START, READY, *steady(3), OOM.format(name)])] == rules


def test_a_kill_that_the_server_goes_on_behind_is_possible_at_most():
    killed = "    Last State: Terminated   Reason: OOMKilled   Exit Code: 137\n"
    (ended,) = found_in([START, READY, *steady(3), killed])
    (went_on,) = found_in([START, READY, killed, *steady(3)])
    assert (ended.confidence, went_on.confidence) == (Confidence.CERTAIN, Confidence.POSSIBLE)


@pytest.mark.parametrize(
    "line",
    [
        'data: {"object":"chat.completion.chunk","choices":[{"delta":{"content":"Segmentation fault"}}]}\n',
        'data: {"choices":[{"delta":{"reasoning_content":"torch.OutOfMemoryError: CUDA out of memory."}}]}\n',
        '        "content": "Killed\\nSegmentation fault (core dumped)",\n',
    ],
)
def test_what_a_model_wrote_is_no_word_of_the_servers(line):
    assert found_in([START, READY, *steady(3), line]) == ()


ONE = "{0} Decode batch. #running-req: 1, #full token: 9800, full token usage: 0.10, #swa token: 9800, swa token "
ONE += "usage: 0.98, cuda graph: True, gen throughput (token/s): 95.2, #queue-req: 0\n"
CHUNK = "{0} Prefill batch. #new-seq: 1, #new-token: {1}, #cached-token: 0, full token usage: 0.10, swa token usage: "
CHUNK += "0.98, #running-req: 0, #queue-req: 0\n"
POOLS = "{0} Use sliding window memory pool. full_layer_tokens=100000, swa_layer_tokens=10000\n"


@pytest.mark.parametrize(("tokens", "one_chunk"), [(9800, True), (200, False)])
def test_a_pool_that_one_chunk_fills_says_nothing_of_evictions(tokens, one_chunk):
    lines = [POOLS.format(stamp(0))]
    for second in range(1, 40, 2):
        lines += [CHUNK.format(stamp(second), tokens), ONE.format(stamp(second + 1))]
    found = next(one for one in found_in(lines) if one.rule == "swa-not-evicted")
    assert (found.confidence is Confidence.POSSIBLE, "a chunk of" in found.cause) == (one_chunk, one_chunk)


@pytest.mark.parametrize(("usage", "sure"), [(0.97, True), (0.4, False)])
def test_retractions_are_of_a_small_pool_for_certain_where_it_was_full(usage, sure):
    thrash = [f"{stamp(i + 1)} KV cache pool is full. Retract requests. #retracted_reqs: 1\n" for i in range(9)]
    found = next(one for one in found_in([prefill(0, full=usage), *thrash]) if one.rule == "retraction-thrash")
    assert (found.confidence is Confidence.CERTAIN, found.ruled_out_if == ()) == (sure, sure)
