"""Classes of the public incidents that were drawn last: what leads, and what a note rules out."""

import pytest

from made_logs import died_in, found_in, stamp, steady

SIZES = f"{stamp(0)} Capture target decode CUDA graph begin. backend=full, num_tokens_per_req=1, bs=[1, 8, 16, 32], "
SIZES += "avail mem=7.10 GB\n"
START = "$ python -m sglang.launch_server --model-path google/gemma-3n-E2B-it --attention-backend fa3\n"
BOUNDS = "IndexError: RadixKey child range out of bounds: offset=0, page_size=16, len=6"
SPLIT = "unified_cache/unified_tree_core.py _split_node"
KEY = "mem_cache/radix_cache.py child_key_at"
LOST = "AttributeError: 'NoneType' object has no attribute 'prepare_for_decode'"


def test_batches_above_every_graph_are_told_though_none_ran_in_one():
    (first, *_) = found_in([SIZES, *steady(3, running=67, graph=False)])
    assert first.rule == "eager-decode"
    assert "more requests ran at once than the 32" in first.cause
    assert first.advice[0].startswith("raise --cuda-graph-max-bs")


@pytest.mark.parametrize("lines", [[SIZES, *steady(3, running=20, graph=False)], steady(3, running=67, graph=False)])
def test_batches_within_them_and_graphs_of_sizes_unknown_are_not(lines):
    assert found_in(lines) == ()


@pytest.mark.parametrize(
    ("log", "cause"),
    [
        (died_in("decode.py _pre_alloc", last="AssertionError: KV cache is full!"), "sliding-window pool"),
        (died_in("spec_utils.py spec_prepare_for_decode", last=LOST), "build_disagg_draft_input"),
        (died_in(SPLIT, "mem_cache/radix_cache.py child_key", KEY, last=BOUNDS), "was not rounded down to a page"),
        (died_in("mem_cache/radix_cache.py match_prefix", KEY, last=BOUNDS), "one fewer than the tokens"),
    ],
    ids=["full pool of a decode server", "no draft input", "split within a page", "a match"],
)
def test_what_is_told(log, cause):
    assert cause in found_in([log])[0].cause


@pytest.mark.parametrize("words", ["stay open without any reply", "get no answer", "got no response"])
def test_a_note_of_requests_without_a_reply_says_that_they_stand(words):
    ready = f"{stamp(1)} The server is fired up and ready to roll!\n"
    first = found_in(["$ sglang serve --tokenizer-worker-num 2\n", ready, f"# the unfinished ones {words}\n"])[0]
    assert first.rule == "noted-silence"


def test_a_response_code_is_no_reply():
    assert found_in([f"{stamp(1)} The server is fired up and ready to roll!\n", "# got no response code 500\n"]) == ()


def test_backends_that_notes_have_fail_are_not_advised():
    others = "# wrong with fa3, and with flashinfer or triton it crashes\n"
    advice = found_in([START, others])[0].advice
    assert advice[0].startswith("by the notes no attention backend serves it (triton, flashinfer, fa3)")
    assert "triton serves most" in found_in([START, "# crashes on the first request\n"])[0].advice[0]
    others = "# crashes on the first request\n# flashinfer, triton and trtllm_mha were not tried\n"
    assert not any("no attention backend" in line for line in found_in([START, others])[0].advice)


def test_a_note_that_it_is_slow_leads_to_the_decode_lines_where_nothing_is_known_of_the_start():
    first = found_in([*steady(2), "# the latency stays four times as high as before\n"])[0]
    assert (first.rule, first.cause[-11:]) == ("noted-trouble", "it is slow.")
    assert "cuda graph: False" in first.advice[0]
