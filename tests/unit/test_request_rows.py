"""The checks of a request's row, against rows that are made wrong in one place."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemma4_dumps.structures import Defect
from gemma4_runtime.checks.request_rows import Row, WrongEntry, check_rows, check_values
from gemma4_runtime.defects import defect_of
from gemma4_runtime.rows.report import common_defect, or_swapped

PAGE, PAGES = 4, 30
END = (PAGES + 1) * PAGE


@st.composite
def worlds(draw):
    """Draw rows of requests that share a prefix of whole pages and no other page, and the owner of each page."""
    order = draw(st.permutations(range(1, PAGES + 1)))
    prefix = order[: draw(st.integers(0, 3))]
    left = order[len(prefix) :]
    rows, owners = [], np.full(PAGES + 1, -1)
    for slot in range(1, draw(st.integers(2, 4))):
        own, left = left[: (count := draw(st.integers(1, 4)))], left[count:]
        owners[own] = slot
        slots = (np.array([*prefix, *own])[:, None] * PAGE + np.arange(PAGE)).ravel()
        rows.append((slot, slots[: slots.size - draw(st.integers(0, PAGE - 1))], len(prefix) * PAGE))
    return rows, owners


def made(rows, owners, before=True):
    return [
        Row(slot, entries, protected, entries.copy() if before else None, entries[:protected].copy(), owners)
        for slot, entries, protected in rows
    ]


@given(worlds(), st.booleans())
def test_silent_on_rows_as_sglang_makes_them(world, before):
    assert check_rows(made(*world, before), PAGE, END) == ()


@given(worlds(), st.data())
def test_any_change_is_found_with_what_was_there_before(world, data):
    rows = made(*world)
    row = data.draw(st.sampled_from(rows))
    column = data.draw(st.integers(0, row.entries.size - 1))
    value = data.draw(st.integers(-3, END + 8).filter(lambda value: value != row.entries[column]))
    expected = int(row.entries[column])
    row.entries[column] = value
    (wrong,) = check_rows(rows, PAGE, END)
    assert (wrong.why, wrong.row, wrong.column) == ("changed", rows.index(row), column)
    assert (wrong.value, wrong.expected) == (value, expected)


@given(worlds(), st.data())
def test_without_a_check_before_a_foreign_page_is_found_all_the_same(world, data):
    rows, owners = world
    victim = data.draw(st.integers(0, len(rows) - 1))
    _, entries, protected = rows[victim]
    pages = entries[protected::PAGE] // PAGE
    at = protected + PAGE * data.draw(st.integers(0, pages.size - 1))
    taken = data.draw(st.sampled_from([page for page in range(1, PAGES + 1) if page != entries[at] // PAGE]))
    entries[at : at + PAGE] = taken * PAGE + np.arange(entries[at : at + PAGE].size)
    found = check_rows(made(rows, owners, before=False), PAGE, END)
    assert found
    # By whichever check: the row that was changed, or both rows in which the page now stands.
    assert victim in {wrong.row for wrong in found} or found[0].why == "shared"


@given(worlds(), st.data())
def test_the_page_that_a_row_lacks_is_told_by_the_ledger_where_nothing_else_was_allocated(world, data):
    rows, owners = world
    slot, entries, protected = data.draw(st.sampled_from(rows))
    at = protected + PAGE * data.draw(st.integers(0, (entries.size - protected - 1) // PAGE))
    lost = int(entries[at])
    taken = data.draw(st.sampled_from([page for page in range(1, PAGES + 1) if owners[page] != slot]))
    entries[at : at + PAGE] = taken * PAGE + np.arange(entries[at : at + PAGE].size)
    more = data.draw(st.sampled_from([0, PAGE]))
    row = Row(slot, entries, protected, owners=owners, allocated=entries.size + more)
    found = [wrong for wrong in check_rows([row], PAGE, END) if wrong.why == "owner"]
    # In the prefix the page stands twice then, which is found before.
    assert [wrong.expected for wrong in found] in ([], [None if more else lost])


def test_a_row_whose_page_was_given_back_lacks_none():
    owners = np.array([-1, 1, -1, 1])
    (wrong,) = check_rows([Row(1, np.arange(4, 12), owners=owners[:3], allocated=8)], 4, 16)
    assert (wrong.why, wrong.column, wrong.expected) == ("owner", 4, None)


def test_pages_that_the_cache_wrote_back_in_another_order_are_told_from_others_that_it_has():
    had = np.arange(4, 12)
    assert found([Row(1, np.r_[8:12, 4:8], protected=8, earlier=had)], "moved") == [(0, 8, 4), (4, 4, 8)]
    assert found([Row(1, np.r_[12:16, 8:12], protected=8, earlier=had)], "moved") == []


def found(rows, why):
    """Return column, value and what belongs there of the first entry of each page that is wrong like this."""
    wrong = check_rows(rows, 4, 64)
    return [(one.column, one.value, one.expected) for one in wrong if one.why == why and one.column % 4 == 0]


def test_the_lists_of_a_batch():
    assert check_values([3, 4], [3, 4]) == ()
    assert check_values([3, 4], [3, None]) == ()
    (wrong,) = check_values([3, 5], [3, 4])
    assert (wrong.row, wrong.value, wrong.expected) == (1, 5, 4)


@pytest.mark.parametrize(
    ("value", "defect"),
    [
        (-1, Defect.NEGATIVE),
        (0, Defect.ZERO),
        (31, Defect.PAST_END),
        (11, Defect.OFF_BY_ONE),
        (20, Defect.OTHER_SPACE),
        (5, Defect.DUPLICATE),
        (6, Defect.FOREIGN),
        (7, Defect.STALE),
        (8, None),
    ],
)
def test_in_which_way_a_value_is_wrong(value, defect):
    assert defect_of(value, 10, 31, own={5}, foreign={6}, free={7}, twin=20) is defect


@pytest.mark.parametrize(
    ("value", "more", "told"),
    [
        (7, {}, Defect.OFF_BY_ONE),
        (7, {"free": {7}}, Defect.OFF_BY_ONE),
        # One beside the right one, and somebody else's: the number alone does not tell which of the two it is.
        (7, {"own": {7}, "foreign": {7}}, Defect.OFF_BY_ONE),
        (7, {"foreign": {7}}, None),
        (7, {"twin": 7}, None),
        (12, {"foreign": {12}}, Defect.FOREIGN),
    ],
)
def test_a_neighbour_that_somebody_else_has_is_not_called_off_by_one(value, more, told):
    assert defect_of(value, 8, 100, **more) is told


def test_entries_that_are_wrong_in_more_than_one_way_are_called_none_of_them():
    assert common_defect([Defect.ZERO, Defect.OFF_BY_ONE, None]) is None
    assert common_defect([Defect.FOREIGN, Defect.FOREIGN]) is Defect.FOREIGN


def test_entries_in_another_order_are_swapped_also_where_no_two_have_each_others():
    ring = [WrongEntry("unlike", row, 0, value, wanted) for row, (value, wanted) in enumerate([(8, 7), (5, 8), (7, 5)])]
    assert or_swapped(ring, [None] * 3) == [Defect.SWAPPED] * 3
    assert or_swapped(ring[:2], [None] * 2) == [None] * 2
