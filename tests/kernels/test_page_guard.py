"""What page_guard finds on planted cases: bounds, null page, window, overflow, ragged rows, the first offence."""

import itertools

import pytest
import torch
from kernel_paths import DEVICE, PATHS, cases_here
from page_guard_by_hand import HIGH, LIMITS, LOW, POISON, Build, Slots, Table, entries_of, null_is_legal, slow
from page_guard_runs import ILLEGAL, IN_PADDED_ROWS, LEGAL, assert_reads_like_the_slow_one, clean, run

from gemma4_kernels.page_guard import spec
from gemma4_kernels.page_guard.launch import Findings, Offence, Overflow


@pytest.mark.sampled(3)
@pytest.mark.parametrize("case", cases_here(spec.CASES))
@pytest.mark.parametrize("path", PATHS)
def test_a_planted_offence_is_found_at_every_corner(path, case):
    rows, columns = sorted({0, case.rows - 1}), {0, case.columns - 1, spec.BLOCK - 1, spec.BLOCK}
    places = [(r, c) for r in rows for c in sorted(columns) if c < case.columns]
    build = clean(case.rows, case.columns, case.page_size, layout="rows-apart")
    table = build.arrays[1].values
    legal = {place: table[place[0]][place[1]] for place in places}
    # All at once: each row's first is at its own lowest column, and the other places are counted.
    for (row, column), value in zip(places, itertools.cycle([-1, 0, 1000, HIGH, LOW]), strict=False):
        table[row][column] = value
        found = assert_reads_like_the_slow_one(build, path) if case.rows * case.columns < 2000 else None
        if found:
            assert found.offences[0][:4] == (1, *places[0], -1)
    found = assert_reads_like_the_slow_one(build, path)
    assert found.counts == (0, len(places))
    # The last place alone, which is in another program's share of the row.
    for (row, column), value in legal.items():
        table[row][column] = value
    row, column = places[-1]
    table[row][column] = -9
    found = assert_reads_like_the_slow_one(build, path)
    assert found == Findings((Offence(1, row, column, -9, 1, 990),), (0, 1), (), (row,))


@pytest.mark.parametrize("path", PATHS)
def test_the_bound_itself_is_out_and_the_entry_before_it_is_in(path):
    for bound, dtype in [(2, torch.int32), (17, torch.int64), (HIGH, torch.int32), (2**63 - 1, torch.int64)]:
        table = Table([[bound - 1, bound]], 2, bound, dtype=dtype)
        found = assert_reads_like_the_slow_one(Build([table], [32]), path)
        assert found == Findings((Offence(0, 0, 1, bound, 1, bound),), (1,), (), (0,))


@pytest.mark.parametrize("path", PATHS)
def test_values_of_sixty_four_bits_are_reported_whole(path):
    """None of them may be taken for its low half, which would be a legal page, nor be reported as it."""
    for value in (2**40 + 3, 2**32 + 1, -(2**40) + 5, LIMITS[torch.int64][0], LIMITS[torch.int64][1]):
        build = Build([Table([[3, value]], 2, 9, dtype=torch.int64), Slots([[value]], 1, 9)], [32])
        found = assert_reads_like_the_slow_one(build, path)
        assert [offence.value for offence in found.offences] == [value, value]


@pytest.mark.parametrize("path", PATHS)
def test_dead_columns_are_left_alone(path):
    build = clean(3, 6, contain=True)
    build.lengths = [33, 0, 16]
    for array, row in itertools.product(build.arrays, range(3)):
        for column in range(len(entries_of(build, array, row)[0]), 6):
            array.values[row][column] = [POISON, -7, 0, LOW][(row + column) % 4]
    assert assert_reads_like_the_slow_one(build, path) is None
    build.lengths = [length + 16 for length in build.lengths]
    assert assert_reads_like_the_slow_one(build, path).counts == (3, 3)


@pytest.mark.parametrize("path", PATHS)
def test_the_null_page_by_mode(path):
    def found(mode, seq_lens=None, fill=0):
        arrays = [Table([[0], [0]], 1, 9, mode), Slots([[0, 15], [16, 3]], 2, 99, mode)]
        return assert_reads_like_the_slow_one(Build(arrays, [1, 1], seq_lens=seq_lens, fill=fill, contain=False), path)

    assert found(LEGAL) is None
    illegal = found(ILLEGAL)
    assert illegal.counts == (2, 3)
    assert [(*offence[:4], offence.lower) for offence in illegal.offences] == [
        (0, 0, 0, 0, 1),
        (0, 1, 0, 0, 1),
        (1, 0, 0, 0, 16),
        (1, 1, 1, 3, 16),
    ]
    # Row 1 only pads the batch. The exemption goes by seq_lens: a verify has the query's length in cache_seqlens too.
    assert found(IN_PADDED_ROWS, [7, 1], 1).rows == (0,)
    assert found(IN_PADDED_ROWS, [7, 0], 0).rows == (0,)
    assert found(ILLEGAL, [1, 1], 1).rows == (0, 1)


@pytest.mark.parametrize("path", PATHS)
def test_a_padded_row_is_exempt_from_the_null_page_only(path):
    build = Build([Table([[-1]], 1, 9, IN_PADDED_ROWS)], [1], seq_lens=[0])
    assert assert_reads_like_the_slow_one(build, path).offences == (Offence(0, 0, 0, -1, 0, 9),)


@pytest.mark.parametrize("path", PATHS)
def test_the_window_has_left_the_columns_below_it_and_no_other(path):
    """100 keys, a window of 40, pages of 16: keys 0..59 are out, so pages 0..2 are, and page 3 holds key 60."""
    row = [0, 5, 0, 0, 7, 8, 9]
    build = Build([Table([row], 7, 99, ILLEGAL, window_keys=40)], [100])
    assert [null_is_legal(build, build.arrays[0], 0, column) for column in range(5)] == [True] * 3 + [False] * 2
    assert assert_reads_like_the_slow_one(build, path).offences == (Offence(0, 0, 3, 0, 1, 99),)
    build.arrays[0].values[0][:4] = [0, 5, 0, 6]
    assert assert_reads_like_the_slow_one(build, path) is None
    # What the window has left has still to be a page that exists.
    build.arrays[0].values[0][0] = 99
    assert assert_reads_like_the_slow_one(build, path).offences == (Offence(0, 0, 0, 99, 0, 99),)
    build.arrays[0].values[0][:4] = [0, 5, 0, 0]
    build.arrays[0].window_keys = 100
    assert assert_reads_like_the_slow_one(build, path).counts == (3,)
    build.arrays[0].null_page = LEGAL
    assert assert_reads_like_the_slow_one(build, path) is None


@pytest.mark.parametrize("path", PATHS)
def test_a_row_that_its_table_cannot_hold(path):
    table = Table([[1, 2], [1, -5], [3, 4], [5, 6]], 2, 9)
    build = Build([Table([[1]] * 4, 1, 9), table], [16, 33, 80, 80])
    found = assert_reads_like_the_slow_one(build, path)
    assert found.overflows == (Overflow.of(0, 2, 5, 1), Overflow.of(1, 2, 5, 2))
    assert (found.offences, found.rows) == ((Offence(1, 1, 1, -5, 1, 9),), (1, 2, 3))


@pytest.mark.parametrize("path", PATHS)
def test_an_indptr_that_leaves_the_slots(path):
    def found(indptr, contain=False):
        build = Build([Slots([20, 21, -1, 23], 0, 50, indptr=indptr)], [0, 0], contain=contain, with_lengths=False)
        return assert_reads_like_the_slow_one(build, path)

    bad = Offence(0, 1, 0, -1, 0, 50)
    assert found([0, 2, 4], contain=True) == Findings((bad,), (1,), (), (1,))
    assert found([0, 2, 5], contain=True) == Findings((bad,), (1,), (Overflow.of(0, 1, 5, 4),), (1,))
    assert found([0, 2, HIGH]).overflows == (Overflow.of(0, 1, HIGH, 4),)
    assert found([-2, 2, 2]) == Findings((), (0,), (Overflow.of(0, 0, spec.NO_SIZE_WOULD_DO, 4),), (0,))
    assert found([4, 3, 4]).overflows == (Overflow.of(0, 0, spec.NO_SIZE_WOULD_DO, 4),)
    assert found([HIGH, HIGH, 4]).rows == (0, 1)
    assert found([LOW, HIGH, LOW]).offences == (Offence(0, 0, 2, -1, 0, 50),)
    # The entries before the first row and after the last are nobody's.
    assert found([3, 4, 4]) is None


@pytest.mark.parametrize("path", PATHS)
def test_ragged_rows_of_many_blocks(path):
    """Rows over several programs and several blocks of one, beside an empty row and one of one entry."""
    width = spec.BLOCK * 3 + 7
    values = [20 + position % 70 for position in range(2 * width)]
    indptr = [0, width, width, width + 1, 2 * width]
    for position in (width - 1, width, width + 1 + spec.BLOCK, width + 1 + 2 * spec.BLOCK):
        values[position] = 7
    build = Build([Slots(values, 0, 90, ILLEGAL, indptr)], [0] * 4, with_lengths=False)
    found = assert_reads_like_the_slow_one(build, path)
    assert [offence[:3] for offence in found.offences] == [(0, 0, width - 1), (0, 2, 0), (0, 3, spec.BLOCK)]


@pytest.mark.parametrize("path", PATHS)
def test_the_first_is_the_same_whatever_else_is_bad(path):
    """Everything from one place on is bad, over several programs, in every table: the first is that place."""
    columns = spec.BLOCK + 60
    build = clean(3, columns, 1, arrays=3)
    for t, r, c in itertools.product(range(3), range(3), range(columns)):
        if (t, r, c) >= (1, 1, spec.BLOCK + 30):
            build.arrays[t].values[r][c] = -1 - c
    runs = [run(build, path) for _ in range(5 if DEVICE == "cuda" else 2)]
    assert all(again == runs[0] for again in runs)
    found = runs[0][0]
    assert found.offences[0][:4] == (1, 1, spec.BLOCK + 30, -1 - spec.BLOCK - 30)
    assert found.counts == (0, 30 + columns, 3 * columns)
    assert (found, runs[0][1]) == slow(build)
