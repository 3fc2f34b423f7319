"""The checks behind the probe `batch-shapes`, on SGLang's own speculative states."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemma4_runtime.checks.batch_shapes import check_row_ends, check_write_rows, filter_problem, merge_problem

pytestmark = pytest.mark.releases("0.5.13.post1", "0.5.23")


@given(st.integers(0, 500), st.integers(0, 500))
def test_only_surplus_rows_are_reported(rows, tokens):
    violation = check_write_rows(rows, tokens)
    assert (violation is None) == (rows <= tokens)
    if violation is not None:
        assert (violation.verdict, violation.count) == ("stale_write_rows", rows - tokens)
        assert not violation.first.lower <= violation.first.value < violation.first.upper


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(0, 40)), max_size=6), st.integers(0, 40))
def test_only_requests_longer_than_their_row_are_reported(requests, width):
    violation = check_row_ends([slot for slot, _ in requests], [have for _, have in requests], width)
    bad = [(slot, width, have) for slot, have in requests if have > width]
    assert (violation is None) == (not bad)
    if violation is not None:
        assert (violation.verdict, violation.count) == ("row_overflow", len(bad))
        assert [(one.row, one.column, one.value) for one in violation.listed] == bad
        assert all(one.lower <= width < one.upper == width + 1 for one in violation.listed)


def states():
    from sglang.srt.speculative.frozen_kv_mtp_info import FrozenKVMTPDraftInput, FrozenKVMTPVerifyInput

    return FrozenKVMTPDraftInput(), FrozenKVMTPVerifyInput.__new__(FrozenKVMTPVerifyInput)


def test_draft_inputs_follow_their_requests():
    draft, _ = states()
    assert merge_problem(draft, draft) is None
    assert filter_problem(draft) is None


def test_without_speculation_there_is_nothing_to_follow():
    assert merge_problem(None, None) is None
    assert filter_problem(None) is None


def test_a_verify_input_can_follow_nobody():
    draft, verify = states()
    assert "FrozenKVMTPVerifyInput" in merge_problem(verify, draft)
    assert "the batch that joins it" in merge_problem(draft, verify)
    assert "has no filter_batch" in filter_problem(verify)


def test_one_sided_state_is_reported_on_its_side():
    draft, _ = states()
    assert merge_problem(None, draft).startswith("the batch has no speculative state")
    assert merge_problem(draft, None).startswith("the batch that joins it has no speculative state")


def test_an_ngram_state_follows_too():
    from sglang.srt.speculative.ngram_info import NgramVerifyInput

    ngram = NgramVerifyInput.__new__(NgramVerifyInput)
    assert merge_problem(ngram, ngram) is None
    assert filter_problem(ngram) is None
