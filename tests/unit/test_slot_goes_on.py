"""The check that a request goes on behind its last slot, against a loop over the requests."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from gemma4_runtime.checks.slot_hand_out import check_goes_on

PAGE, UPPER = 4, 80
requests = st.lists(st.tuples(st.integers(-1, 60), st.integers(0, 5), st.booleans()), min_size=1, max_size=6)


def slots_of(last, count, right):
    begin = last + 1 if right and last >= 0 else 64
    return [begin + at for at in range(count)]


@given(requests)
def test_the_first_slot_of_who_is_within_a_page_is_behind_its_last(asked):
    given_slots, bad, row = [], [], 0
    for last, count, right in asked:
        slots = slots_of(last, count, right)
        if count and last >= 0 and (last + 1) % PAGE and slots[0] != last + 1:
            bad.append((row, slots[0]))
        given_slots += slots
        row += count
    last_loc, counts = (torch.tensor([one[at] for one in asked]) for at in (0, 1))
    found = check_goes_on(torch.tensor(given_slots, dtype=torch.int64), last_loc, counts, PAGE, UPPER)
    assert (None if found is None else [(one.row, one.value) for one in found.listed]) == (bad or None)


def test_where_the_counts_are_others_than_the_slots_nothing_is_said():
    slots = torch.tensor([40, 41])
    assert check_goes_on(slots, torch.tensor([10]), torch.tensor([1]), PAGE, UPPER) is None
    assert check_goes_on(slots, torch.tensor([10, 11]), torch.tensor([2]), PAGE, UPPER) is None
