"""The page-table check against a slow, independent reading of its contract."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from gemma4_runtime.checks.page_bounds import check_page_bounds
from gemma4_runtime.checks.slot_range import check_slot_range
from gemma4_runtime.checks.violation import MAX_LISTED


def slow(table, seqlens, page, bound, null_until):
    bad = []
    for row, (pages, length, until) in enumerate(zip(table, seqlens, null_until, strict=True)):
        for column in range((length + page - 1) // page):
            if not (0 if column < until else 1) <= pages[column] < bound:
                bad.append((row, column, pages[column]))
    return bad


@st.composite
def cases(draw):
    rows, columns = draw(st.integers(0, 6)), draw(st.integers(0, 9))
    page, bound = draw(st.sampled_from([1, 2, 16, 64])), draw(st.integers(1, 12))
    ids = st.integers(-2, bound + 2)
    table = [draw(st.lists(ids, min_size=columns, max_size=columns)) for _ in range(rows)]
    seqlens = [draw(st.integers(0, columns * page)) for _ in range(rows)]
    return table, seqlens, page, bound, [draw(st.integers(0, columns + 1)) for _ in range(rows)], columns


@given(cases(), st.booleans())
def test_equals_the_slow_reading(case, strided):
    table, seqlens, page, bound, null_until, columns = case
    tensor = torch.tensor(table, dtype=torch.int32).reshape(len(table), columns)
    if strided:
        tensor = torch.stack([tensor, torch.full_like(tensor, 99)], dim=-1)[..., 0]
    found = check_page_bounds(
        tensor, torch.tensor(seqlens, dtype=torch.int32), page, bound, torch.tensor(null_until, dtype=torch.int64)
    )
    expected = slow(table, seqlens, page, bound, null_until)
    if not expected:
        assert found is None
        return
    assert found is not None
    assert found.count == len(expected)
    assert [(bad.row, bad.column, bad.value) for bad in found.listed] == expected[:MAX_LISTED]


def test_stale_trailing_columns_are_never_looked_at():
    table = torch.tensor([[1, 2, 1_000_000, -7]])
    assert check_page_bounds(table, torch.tensor([32]), 16, 3, 0) is None
    assert check_page_bounds(table, torch.tensor([33]), 16, 3, 0).first.value == 1_000_000


def test_verdicts():
    lens = torch.tensor([16])
    assert check_page_bounds(torch.tensor([[-1]]), lens, 16, 4, 0).verdict == "negative"
    assert check_page_bounds(torch.tensor([[0]]), lens, 16, 4, 0).verdict == "null_page_live"
    assert check_page_bounds(torch.tensor([[4]]), lens, 16, 4, 0).verdict == "out_of_range"
    assert check_page_bounds(torch.tensor([[0]]), lens, 16, 4, 1) is None


def test_a_table_that_ends_before_its_row_does():
    found = check_page_bounds(torch.ones(3, 2), torch.tensor([32, 33, 70]), 16, 4, 0)
    assert (found.verdict, found.count) == ("table_too_narrow", 2)
    assert [(bad.row, bad.value, bad.upper) for bad in found.listed] == [(1, 3, 3), (2, 5, 3)]
    assert check_page_bounds(torch.ones(1, 0), torch.tensor([0]), 16, 4, 0) is None
    assert check_page_bounds(torch.ones(0, 3), torch.ones(0), 16, 4, 0) is None


def test_a_long_list_is_cut_and_counted():
    table = torch.full((50, 50), 9)
    found = check_page_bounds(table, torch.full((50,), 50), 1, 9, 0)
    assert (found.count, len(found.listed)) == (2500, MAX_LISTED)


@given(st.lists(st.integers(-3, 40), max_size=12), st.integers(1, 16), st.integers(16, 36), st.data())
def test_slot_range_equals_a_slow_reading(slots, lower, upper, data):
    legal = [data.draw(st.booleans()) for _ in slots]
    found = check_slot_range(
        torch.tensor(slots, dtype=torch.int64), lower, upper, torch.tensor(legal, dtype=torch.bool)
    )
    expected = [
        (row, slot)
        for row, (slot, ok) in enumerate(zip(slots, legal, strict=True))
        if not lower <= slot < upper and not (slot == -1 and ok)
    ]
    assert ([] if found is None else [(bad.row, bad.value) for bad in found.listed]) == expected
