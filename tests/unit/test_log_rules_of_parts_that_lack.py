"""What a log shows of a part that has no room, or was given what it does not take, is told before what is general."""

import pytest

from gemma4_triage.logs.catalog import findings
from gemma4_triage.logs.read import read_log
from gemma4_triage.logs.suspects import suspects
from made_logs import decode, ended, found_in, only, started, told

FULL = (
    "Available full tokens: 91000 (full_available_size=91000 + full_evictable_size=0)\n"
    "Available swa tokens: {swa} (swa_available_size={swa} + swa_evictable_size=0)\n"
)
OUT = "RuntimeError: Decode out of memory. Try to lower your batch size.\nTry to allocate 61 tokens.\n"


def no_slot(swa: int, **settings: object) -> str:
    lines = [started(page_size=1, **settings), FULL.format(swa=swa), ended(OUT)]
    (finding,) = (one for one in found_in(lines) if one.rule == "no-slot")
    return told(finding)


def test_a_pool_of_windows_that_alone_is_empty_is_made_larger_by_its_ratio():
    assert "--swa-full-tokens-ratio (now 0.2)" in no_slot(0, swa_full_tokens_ratio=0.2)
    assert "--swa-full-tokens-ratio" not in no_slot(40, swa_full_tokens_ratio=0.2)


def test_batches_that_prefill_and_decode_are_left_out_first_where_a_decode_had_no_slot():
    assert "without --enable-mixed-chunk" in no_slot(0, enable_mixed_chunk=True)
    assert "mixed" not in no_slot(0, enable_mixed_chunk=False)


@pytest.mark.parametrize(
    ("last", "words"),
    [
        ("RuntimeError: FlashAttention only support fp16 and bf16 data type", "TRITON_ATTN"),
        ("ValueError: mm_fp4 accepts 2d tensors, got torch.Size([1, 252, 576]) and torch.Size([576, 3456])", "ignore"),
    ],
)
def test_what_a_kernel_was_given_is_told_with_where_it_comes_from(last, words):
    finding = only([started(), ended(last)])
    assert (finding.rule, words in told(finding)) == ("told-by-words", True)


def test_what_pydantic_says_below_its_count_is_read():
    last = "pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig\n"
    said = "  Value error, The checkpoint has model type `a` but Transformers does not recognize this architecture.\n"
    assert found_in([ended(last), said])[0].rule == "wheels-do-not-fit"


def test_pages_that_other_weights_stored_and_stages_are_suspected():
    facts = read_log("x", [(started(hicache_storage_backend="file", pp_size=2) + decode(1)).encode()])
    assert findings(facts) == ()
    said = " ".join(one.text for one in suspects(facts))
    assert "without --hicache-storage-backend" in said
    assert "--pp-size 1" in said
