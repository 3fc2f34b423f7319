"""window_lists against a loop over requests and tokens: lengths about the window, layouts, slots that lead nowhere."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_paths import DEVICE, PATHS, cases_here

from gemma4_kernels.window_lists import spec
from gemma4_kernels.window_lists.launch import window_lists

GENERATOR = torch.Generator().manual_seed(0)
WINDOW = 31
MARK = -77


def by_hand(req_to_token, rows, lengths, window, mapping):
    """(slots, starts, kept, first) as lists."""
    slots, starts, kept, first = [], [0], [], []
    table = req_to_token.tolist()
    known = None if mapping is None else mapping.tolist()
    for row, length in zip(rows, lengths, strict=True):
        begin = max(length - window, 0)
        for slot in table[row][begin:length]:
            reached = known is not None and 0 <= slot < len(known)
            slots.append(known[slot] if reached else slot)
        starts.append(len(slots))
        kept.append(length - begin)
        first.append(begin)
    return slots, starts, kept, first


def assert_lists(path, req_to_token, rows, lengths, window=WINDOW, mapping=None, dtypes=(torch.int64, torch.int64)):
    expected = by_hand(req_to_token, rows, lengths, window, mapping)
    requests = len(lengths)
    starts = torch.full((requests + 5,), MARK, dtype=torch.int32, device=DEVICE)
    starts[0] = 0
    given_slots = torch.full((requests * window + 3,), MARK, dtype=torch.int64, device=DEVICE)
    places = torch.tensor(rows, dtype=dtypes[0], device=DEVICE)
    counts = torch.tensor(lengths, dtype=dtypes[1], device=DEVICE)
    known = None if mapping is None else mapping.to(DEVICE)
    found = window_lists(req_to_token, places, counts, window, known, starts, given_slots, path=path)
    assert found[0] is given_slots
    total = len(expected[0])
    assert found[0].tolist() == expected[0] + [MARK] * (requests * window + 3 - total), "and nothing behind the end"
    assert starts.tolist() == expected[1] + [MARK] * 4
    assert (found[1].tolist(), found[2].tolist()) == expected[2:]
    assert found[1].dtype == found[2].dtype == counts.dtype
    fresh, _, _ = window_lists(req_to_token, places, counts, window, known, starts, path=path)
    assert fresh.shape == (requests * window,)
    assert fresh[:total].tolist() == expected[0]


def table(rows, tokens, slots=1000):
    return torch.randint(1, slots, (rows, tokens), generator=GENERATOR, dtype=torch.int32).to(DEVICE)


def pool_mapping(slots=1000):
    """Return the mapping as SGLang has it: a slot per full slot, 0 where there is none, a last -1 for the slot -1."""
    made = torch.randint(0, 300, (slots + 1,), generator=GENERATOR)
    made[-1] = -1
    return made


ABOUT_THE_WINDOW = [0, 1, WINDOW - 1, WINDOW, WINDOW + 1, 90, 0, 64]


@pytest.mark.parametrize("dtypes", [(a, b) for a in (torch.int32, torch.int64) for b in (torch.int32, torch.int64)])
@pytest.mark.parametrize("mapped", [False, True])
@pytest.mark.parametrize("path", PATHS)
def test_lengths_about_the_window(path, mapped, dtypes):
    rows = [3, 0, 7, 7, 1, 9, 2, 5]
    assert_lists(path, table(10, 96), rows, ABOUT_THE_WINDOW, mapping=pool_mapping() if mapped else None, dtypes=dtypes)


@pytest.mark.parametrize("case", cases_here(spec.CASES))
@pytest.mark.parametrize("path", PATHS)
def test_sizes(path, case):
    lengths = torch.randint(0, case.tokens + 1, (case.requests,), generator=GENERATOR).tolist()
    lengths[:1], lengths[1:2] = [case.tokens][: case.requests], [0][: case.requests - 1]
    rows = torch.randperm(case.requests + 1, generator=GENERATOR)[: case.requests].tolist()
    assert_lists(path, table(case.requests + 1, case.tokens), rows, lengths, case.window, pool_mapping())


@pytest.mark.parametrize("window", [1, 2, 255, 600])
@pytest.mark.parametrize("path", PATHS)
def test_windows_about_a_programs_piece(path, window):
    assert_lists(path, table(3, 700), [2, 0, 1], [700, 256, window], window, pool_mapping())


@pytest.mark.parametrize("path", PATHS)
def test_no_requests(path):
    assert_lists(path, table(2, 8), [], [], mapping=pool_mapping())
    assert_lists(path, table(2, 8), [0, 1], [0, 0], mapping=pool_mapping())


@pytest.mark.parametrize("path", PATHS)
def test_rows_that_are_part_of_a_wider_table(path):
    wide = table(6, 96)
    assert_lists(path, wide[1:, 5:70], [4, 0, 2], [40, 65, 31], mapping=pool_mapping())


@pytest.mark.parametrize("path", PATHS)
def test_addresses_that_are_no_multiple_of_16_bytes(path):
    """They go through Triton's own launch."""
    rows, lengths = torch.tensor([9, 1, 0], device=DEVICE)[1:], torch.tensor([9, 40, 33], device=DEVICE)[1:]
    starts = torch.zeros(3, dtype=torch.int32, device=DEVICE)
    held = table(2, 96)
    slots, _, _ = window_lists(held, rows, lengths, WINDOW, None, starts, path=path)
    assert slots.tolist() == by_hand(held, [1, 0], [40, 33], WINDOW, None)[0]


@pytest.mark.parametrize("slot", [-1, -2, -(2**31), 0, 1000, 1001, 2**31 - 1])
@pytest.mark.parametrize("path", PATHS)
def test_a_slot_that_the_mapping_lacks_stays_as_it_is(path, slot):
    held = table(2, 40)
    held[1, 20] = slot
    assert_lists(path, held, [0, 1], [40, 40], mapping=pool_mapping())


@settings(deadline=None, max_examples=60)
@given(data=st.data())
@pytest.mark.parametrize("path", PATHS)
def test_any_batch(path, data):
    tokens = data.draw(st.integers(1, 40))
    lengths = data.draw(st.lists(st.integers(0, tokens), min_size=0, max_size=9))
    rows = data.draw(st.lists(st.integers(0, 3), min_size=len(lengths), max_size=len(lengths)))
    mapping = pool_mapping() if data.draw(st.booleans()) else None
    assert_lists(path, table(4, tokens), rows, lengths, data.draw(st.integers(1, 45)), mapping)


def arguments(**changes):
    made = {
        "req_to_token": table(2, 40),
        "rows": torch.tensor([0, 1], device=DEVICE),
        "lengths": torch.tensor([40, 3], device=DEVICE),
        "window": WINDOW,
        "mapping": pool_mapping().to(DEVICE),
        "starts": torch.zeros(3, dtype=torch.int32, device=DEVICE),
    }
    return made | {
        name: value.to(DEVICE) if isinstance(value, torch.Tensor) else value for name, value in changes.items()
    }


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"req_to_token": torch.zeros(2, 40)}, "req_to_token is"),
        ({"req_to_token": torch.zeros(40, dtype=torch.int32)}, "req_to_token is"),
        ({"req_to_token": torch.zeros(40, 2, dtype=torch.int32).T}, "req_to_token has stride"),
        ({"rows": torch.tensor([0, 1, 1])}, "one of each request"),
        ({"rows": torch.tensor([0])}, "rows is"),
        ({"lengths": torch.tensor([1.0, 2.0])}, "lengths is"),
        ({"lengths": torch.tensor([[1, 2]])}, "lengths is"),
        ({"lengths": torch.tensor([1, 9, 2, 9], device=DEVICE)[::2]}, "lengths has stride"),
        ({"window": 0}, "window is 0"),
        ({"mapping": torch.zeros(9, dtype=torch.int32)}, "mapping is"),
        ({"starts": torch.zeros(2, dtype=torch.int32)}, "starts is"),
        ({"slots": torch.zeros(2 * WINDOW - 1, dtype=torch.int64)}, "slots is"),
        ({"path": "fast"}, "path is 'fast'"),
    ],
)
def test_what_is_refused(changes, said):
    with pytest.raises(ValueError, match=said):
        window_lists(**arguments(**changes))
