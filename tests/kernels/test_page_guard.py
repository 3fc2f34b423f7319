"""page_guard: kernel and torch path against a slow reading in plain Python.

On this kind of machine the kernel runs in the Triton interpreter; where there is a GPU, the same tests run there.
"""

import itertools
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from page_guard_by_hand import (
    HIGH,
    LAYOUTS,
    LIMITS,
    LOW,
    POISON,
    Build,
    Slots,
    Table,
    arguments,
    entries_of,
    null_is_legal,
    rows_overlap,
    slow,
)

from gemma4_kernels.page_guard import spec
from gemma4_kernels.page_guard.findings import decode
from gemma4_kernels.page_guard.launch import (
    Findings,
    GuardedSlots,
    GuardedTable,
    NullPage,
    Offence,
    Overflow,
    Padding,
    PageGuard,
    PreparedCheck,
)

ROOT = Path(__file__).resolve().parents[2]
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cpu" if INTERPRETED or not torch.cuda.is_available() else "cuda"
needs_kernel = pytest.mark.skipif(
    DEVICE == "cpu" and not INTERPRETED, reason="needs CUDA or TRITON_INTERPRET=1, set before Triton is imported"
)
PATHS = [pytest.param("torch", id="torch"), pytest.param("kernel", id="kernel", marks=needs_kernel)]
ILLEGAL, LEGAL, IN_PADDED_ROWS = NullPage


def launch_and_read(prepared: PreparedCheck) -> Findings | None:
    prepared.launch()
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    return prepared.read()


def run(build: Build, path: str):
    """(findings, arrays afterwards, result words), and nothing around the arrays has changed."""
    given_, views, memories = arguments(build, DEVICE)
    before = [(memory.clone(), view.clone()) for memory, view in zip(memories, views, strict=True)]
    prepared = PageGuard(DEVICE, path).prepare(**given_)
    prepared.launch()
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    words = prepared.result.tolist()
    after = [view.tolist() for view in views]
    for view, memory, (old, contents) in zip(views, memories, before, strict=True):
        # With the view put back as it was, the memory around it has to be what it was.
        view.copy_(contents)
        assert torch.equal(memory, old), "memory outside the array was written"
    found = prepared.read()
    assert not prepared.result.any(), "the next launch would not start clean"
    return found, after, words


def assert_reads_like_the_slow_one(build: Build, path: str) -> Findings | None:
    expected, arrays = slow(build)
    found, after, _ = run(build, path)
    assert found == expected
    assert after == arrays
    return found


def assert_contains_rows_that_overlap(build: Build, path: str) -> None:
    """One program may read the 0 of another: what is certain is who overflows, and that nothing bad is left."""
    expected, arrays = slow(build)
    found, after, _ = run(build, path)
    assert after == arrays
    assert (found is None) == (expected is None)
    if expected and found:
        assert found.overflows == expected.overflows
        assert {offence.array for offence in found.offences} == {offence.array for offence in expected.offences}
        assert set(found.rows) <= set(expected.rows)


def values_near(bound: int, page_size: int, dtype: torch.dtype) -> st.SearchStrategy[int]:
    low, high = LIMITS[dtype]
    edges = [0, 1, page_size - 1, page_size, bound - 1, bound, low, high]
    wide = [2**40, -(2**40), 2**32 + 1] if dtype == torch.int64 else []
    return st.integers(-1, min(bound + 1, 40)) | st.sampled_from([edge for edge in edges if low <= edge <= high] + wide)


TYPES = st.sampled_from([torch.int32, torch.int64])


@st.composite
def tables(draw, rows: int, page_size: int, modes: list[NullPage]) -> Table:
    dtype, columns = draw(TYPES), draw(st.integers(0, 6))
    bound = draw(st.integers(1, 9) | st.sampled_from([HIGH, spec.MAX_BOUND]))
    values = values_near(bound, page_size, dtype)
    row = st.lists(values, min_size=columns, max_size=columns)
    window = draw(st.sampled_from([-1, -1, 0, 1, page_size, 2 * page_size + 1, 2**40, spec.MAX_BOUND]))
    contents = draw(st.lists(row, min_size=rows, max_size=rows))
    return Table(contents, columns, bound, draw(st.sampled_from(modes)), window, dtype)


@st.composite
def slots(draw, rows: int, page_size: int, modes: list[NullPage]) -> Slots:
    dtype = draw(TYPES)
    bound = draw(st.integers(1, 40) | st.sampled_from([HIGH, spec.MAX_BOUND]))
    values = values_near(bound, page_size, dtype)
    mode = draw(st.sampled_from(modes))
    if draw(st.booleans()):
        columns = draw(st.integers(0, 5))
        row = st.lists(values, min_size=columns, max_size=columns)
        return Slots(draw(st.lists(row, min_size=rows, max_size=rows)), columns, bound, mode, None, dtype)
    flat = draw(st.lists(values, max_size=12))
    indptr_type = draw(TYPES)
    ends = st.lists(st.integers(0, len(flat)), min_size=rows + 1, max_size=rows + 1)
    corrupt = st.integers(-3, len(flat) + 3) | st.sampled_from(LIMITS[indptr_type])
    anything = st.lists(corrupt, min_size=rows + 1, max_size=rows + 1)
    indptr = draw(ends.map(sorted) | anything)
    return Slots(flat, 0, bound, mode, indptr, dtype, indptr_type)


@st.composite
def builds(draw) -> Build:
    rows, page_size = draw(st.integers(0, 4)), draw(st.sampled_from([1, 3, 16, 64]))
    padded = draw(st.booleans())
    modes = list(NullPage) if padded else [ILLEGAL, LEGAL]
    array = tables(rows, page_size, modes) | slots(rows, page_size, modes)
    arrays = draw(st.lists(array, min_size=1, max_size=4))
    wide = draw(st.booleans())
    longest = max([0, *(array.columns for array in arrays)]) * page_size + 40
    length = st.integers(-3, longest) | st.sampled_from(LIMITS[torch.int64 if wide else torch.int32])
    no_table = not any(isinstance(array, Table) for array in arrays)
    return Build(
        arrays=arrays,
        lengths=draw(st.lists(length, min_size=rows, max_size=rows)),
        page_size=page_size,
        contain=draw(st.booleans()),
        seq_lens=draw(st.lists(st.integers(0, 3), min_size=rows, max_size=rows)) if padded else None,
        fill=draw(st.integers(0, 2)),
        layout=draw(st.sampled_from(LAYOUTS)),
        length_type=torch.int64 if wide else torch.int32,
        with_lengths=not (no_table and draw(st.booleans())),
    )


def clean(rows: int, columns: int, page_size: int = 16, arrays: int = 2, **changes) -> Build:
    """Every entry live and legal: ids 1..bound-1, different from row to row and from table to table."""
    bounds = [1000 - 10 * t for t in range(arrays)]
    return Build(
        arrays=[
            Table(
                [[1 + (31 * r + c + t) % (bounds[t] - 1) for c in range(columns)] for r in range(rows)], columns, bound
            )
            for t, bound in enumerate(bounds)
        ],
        lengths=[columns * page_size] * rows,
        page_size=page_size,
        **changes,
    )


@settings(max_examples=120, deadline=None)
@given(builds())
@example(Build([Table([], 4, 3)], []))
@example(Build([Table([[], []], 0, 3)], [16, 16]))
@example(Build([Table([[], []], 0, 3), Table([[5], [0]], 1, 3)], [0, 16]))
@example(Build([Slots([], 0, 3, indptr=[0, 0, 5])], [0, 0], with_lengths=False))
@pytest.mark.parametrize("path", PATHS)
def test_equals_the_slow_reading(path, build):
    if build.contain and path == "kernel" and rows_overlap(build):
        assert_contains_rows_that_overlap(build, path)
    else:
        assert_reads_like_the_slow_one(build, path)


@settings(max_examples=40, deadline=None)
@given(builds())
@needs_kernel
def test_kernel_and_torch_path_leave_the_same_words_and_arrays(build):
    build.contain = build.contain and not rows_overlap(build)
    assert run(build, "kernel")[1:] == run(build, "torch")[1:]


@settings(max_examples=40, deadline=None)
@given(builds())
@pytest.mark.parametrize("path", PATHS)
def test_a_check_finds_what_a_prepared_launch_finds(path, build):
    build.contain = build.contain and not rows_overlap(build)
    given_, views, _ = arguments(build, DEVICE)
    found = PageGuard(DEVICE, path).check(**given_)
    assert (found, [view.tolist() for view in views]) == run(build, path)[:2]


@pytest.mark.parametrize(
    "case", [case for case in spec.CASES if case.interpreted or DEVICE == "cuda"], ids=lambda c: c.name
)
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
    assert found == Findings((Offence(1, row, column, -9, 990, 1),), (0, 1), (), (row,))


@pytest.mark.parametrize("path", PATHS)
def test_the_bound_itself_is_out_and_the_entry_before_it_is_in(path):
    for bound, dtype in [(2, torch.int32), (17, torch.int64), (HIGH, torch.int32), (2**63 - 1, torch.int64)]:
        table = Table([[bound - 1, bound]], 2, bound, dtype=dtype)
        found = assert_reads_like_the_slow_one(Build([table], [32]), path)
        assert found == Findings((Offence(0, 0, 1, bound, bound, 1),), (1,), (), (0,))


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
    assert assert_reads_like_the_slow_one(build, path).offences == (Offence(0, 0, 0, -1, 9, 0),)


@pytest.mark.parametrize("path", PATHS)
def test_the_window_has_left_the_columns_below_it_and_no_other(path):
    """100 keys, a window of 40, pages of 16: keys 0..59 are out, so pages 0..2 are, and page 3 holds key 60."""
    row = [0, 5, 0, 0, 7, 8, 9]
    build = Build([Table([row], 7, 99, ILLEGAL, window_keys=40)], [100])
    assert [null_is_legal(build, build.arrays[0], 0, column) for column in range(5)] == [True] * 3 + [False] * 2
    assert assert_reads_like_the_slow_one(build, path).offences == (Offence(0, 0, 3, 0, 99, 1),)
    build.arrays[0].values[0][:4] = [0, 5, 0, 6]
    assert assert_reads_like_the_slow_one(build, path) is None
    # What the window has left has still to be a page that exists.
    build.arrays[0].values[0][0] = 99
    assert assert_reads_like_the_slow_one(build, path).offences == (Offence(0, 0, 0, 99, 99, 0),)
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
    assert found.overflows == (Overflow(0, 2, 5, 1), Overflow(1, 2, 5, 2))
    assert (found.offences, found.rows) == ((Offence(1, 1, 1, -5, 9, 1),), (1, 2, 3))


@pytest.mark.parametrize("path", PATHS)
def test_an_indptr_that_leaves_the_slots(path):
    def found(indptr, contain=False):
        build = Build([Slots([20, 21, -1, 23], 0, 50, indptr=indptr)], [0, 0], contain=contain, with_lengths=False)
        return assert_reads_like_the_slow_one(build, path)

    bad = Offence(0, 1, 0, -1, 50, 0)
    assert found([0, 2, 4], contain=True) == Findings((bad,), (1,), (), (1,))
    assert found([0, 2, 5], contain=True) == Findings((bad,), (1,), (Overflow(0, 1, 5, 4),), (1,))
    assert found([0, 2, HIGH]).overflows == (Overflow(0, 1, HIGH, 4),)
    assert found([-2, 2, 2]) == Findings((), (0,), (Overflow(0, 0, spec.NO_SIZE_WOULD_DO, 4),), (0,))
    assert found([4, 3, 4]).overflows == (Overflow(0, 0, spec.NO_SIZE_WOULD_DO, 4),)
    assert found([HIGH, HIGH, 4]).rows == (0, 1)
    assert found([LOW, HIGH, LOW]).offences == (Offence(0, 0, 2, -1, 50, 0),)
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


@pytest.mark.parametrize("path", PATHS)
def test_a_launch_forgets_the_one_before_and_overwritten_words_are_refused_once(path):
    pages = torch.tensor([[1], [9]], dtype=torch.int32, device=DEVICE)
    lengths = torch.tensor([1, 1], device=DEVICE)
    prepared = PageGuard(DEVICE, path).prepare(one(pages), lengths, 1, contain=False)
    for page in (9, 7, 3, 3, 8, 3):
        pages[1] = page
        expected = Findings((Offence(0, 1, 0, page, 4, 1),), (1,), (), (1,)) if page >= 4 else None
        assert launch_and_read(prepared) == expected
    prepared.result.fill_(-1)
    with pytest.raises(ValueError, match="not a page_guard result"):
        launch_and_read(prepared)
    assert launch_and_read(prepared) is None


@pytest.mark.parametrize("path", PATHS)
def test_a_check_without_rows_finds_nothing(path):
    assert not any(run(Build([Table([], 4, 3)], []), path)[2])


@pytest.mark.parametrize("path", PATHS)
def test_two_prepared_checks_are_in_flight_together(path):
    """Draft and verify of one step: neither overwrites what the host has yet to read of the other."""
    guard = PageGuard(DEVICE, path)
    pages = torch.tensor([[1, 7], [3, 4]], dtype=torch.int32, device=DEVICE)
    out_cache_loc = torch.tensor([16, 99], device=DEVICE)
    lengths = torch.tensor([2, 1], device=DEVICE)
    draft = guard.prepare([GuardedTable(pages, 5)], lengths, 1, contain=True)
    verify = guard.prepare([GuardedSlots(out_cache_loc.view(2, 1), 50)], None, 16, contain=True)
    for first, second in [(7, 99), (2, 20), (2, 99), (8, 20)]:
        pages[0, 1], out_cache_loc[1] = first, second
        draft.launch()
        both = launch_and_read(verify), draft.read()
        values = [[offence.value for offence in found.offences] if found else [] for found in reversed(both)]
        assert values == [[first] if first >= 5 else [], [second] if second >= 50 else []]
        contained = (first if first < 5 else 0, second if second < 50 else 0)
        assert (pages[0, 1].item(), out_cache_loc[1].item()) == contained


@pytest.mark.parametrize("path", PATHS)
def test_arrays_may_share_memory_when_nothing_is_contained(path):
    pages = torch.tensor([[1, 5, 9]], dtype=torch.int32, device=DEVICE)
    lengths = torch.tensor([3], device=DEVICE)
    guard = PageGuard(DEVICE, path)
    arrays = [GuardedTable(pages, 100), GuardedTable(pages, 6), GuardedTable(pages, 3)]
    found = guard.check(arrays, lengths, 1, contain=False)
    assert found == Findings((Offence(1, 0, 2, 9, 6, 1), Offence(2, 0, 1, 5, 3, 1)), (0, 1, 2), (), (0,))
    for refused, message in [
        (arrays, "arrays 0 and 1 share memory"),
        ([arrays[0], GuardedSlots(pages[0, 2:], 9, indptr=lengths.new_zeros(2))], "arrays 0 and 1 share memory"),
        ([GuardedTable(pages[:, :1].expand(1, 3), 3)], "entries that share memory"),
        ([GuardedSlots(pages[0, :1].expand(3), 3, indptr=lengths.new_zeros(2))], "entries that share memory"),
    ]:
        with pytest.raises(ValueError, match=message):
            guard.check(refused, lengths, 1, contain=True)


PAGES = torch.ones(2, 3, dtype=torch.int32)
INDPTR = torch.tensor([0, 1, 3])


def one(pages: torch.Tensor, bound: int = 4, *more) -> list[GuardedTable]:
    return [GuardedTable(pages, bound, *more)]


def flat(slots: torch.Tensor = PAGES[0], indptr: torch.Tensor | None = INDPTR) -> list[GuardedSlots]:
    return [GuardedSlots(slots, 4, indptr=indptr)]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"arrays": []}, "0 arrays"),
        ({"arrays": one(PAGES) * 5}, "5 arrays"),
        ({"arrays": one(PAGES.short())}, "torch.int16"),
        ({"arrays": one(PAGES[0])}, "expected .* int32"),
        ({"arrays": one(PAGES.to("meta"))}, "on meta"),
        ({"arrays": [*one(PAGES), *one(PAGES[:1])]}, r"array 1 is \[1, 3\]"),
        ({"arrays": one(torch.ones(spec.MAX_ROWS + 1, 3, dtype=torch.int32))}, "65536 rows"),
        ({"arrays": one(PAGES, 0)}, "bound is 0"),
        ({"arrays": one(PAGES, 2**63)}, "bound is 9223372036854775808"),
        ({"arrays": one(PAGES, 4, NullPage.LEGAL_IN_PADDED_ROWS)}, "no padding"),
        ({"arrays": one(PAGES, 4, NullPage.LEGAL, -2)}, "window_keys is -2"),
        ({"arrays": flat(PAGES)}, "because it has an indptr"),
        ({"arrays": flat(PAGES[0], None), "cache_seqlens": None}, "or .n. with indptr"),
        ({"arrays": flat(indptr=INDPTR[:2])}, r"indptr is \[2\]"),
        ({"arrays": flat(indptr=INDPTR.float())}, "indptr is .* torch.float32"),
        ({"arrays": flat(indptr=INDPTR[:0]), "cache_seqlens": None}, "-1 rows"),
        ({"arrays": flat(), "rows": 3}, "expected .4 or more"),
        ({"rows": 3}, "expected .3, columns"),
        ({"page_size": 0}, "page_size is 0"),
        ({"cache_seqlens": None}, "cache_seqlens is None"),
        ({"cache_seqlens": torch.tensor([1, 2, 3])}, r"cache_seqlens is \[3\]"),
        ({"cache_seqlens": torch.tensor([1.0, 2.0])}, "cache_seqlens is .* torch.float32"),
        ({"padding": Padding(torch.tensor([1]), 1)}, "padding.seq_lens"),
        ({"arrays": one(PAGES[:1].expand(2, 3))}, "share memory"),
    ],
)
def test_arguments_that_cannot_be_checked(change, message):
    ok = {"arrays": one(PAGES), "cache_seqlens": torch.tensor([1, 2]), "page_size": 1, "contain": True}
    guard = PageGuard("cpu", "torch")
    for method in (guard.check, guard.prepare):
        with pytest.raises(ValueError, match=message):
            method(**(ok | change))


def test_the_rows_of_ragged_slots_alone():
    def rows(**more):
        return guard.check([GuardedSlots(torch.tensor([99] * 3), 9, indptr=INDPTR)], None, 1, contain=False, **more)

    guard = PageGuard("cpu", "torch")
    assert rows().rows == (0, 1)
    assert rows(rows=1).rows == (0,)


def test_a_path_that_there_is_not():
    with pytest.raises(ValueError, match="path is 'gpu'"):
        PageGuard("cpu", "gpu")  # pyright: ignore[reportArgumentType]


def test_words_that_are_not_a_result_are_refused():
    words = spec.result_words(1, 2)
    for result in (torch.zeros(3, dtype=torch.int64), torch.zeros(words), torch.zeros(words, device="meta")):
        with pytest.raises(ValueError, match="a result is"):
            decode(result)
    prepared = PageGuard("cpu", "torch").prepare(one(PAGES, 1), torch.tensor([0, 1]), 1, contain=False)
    prepared.launch()
    result = prepared.result
    # As many words as another result has, and older ones behind.
    assert decode(torch.cat([result, torch.full((9,), -1)])) == decode(result) is not None
    lane = spec.LANES + spec.LANE_WORDS
    for word, value in [
        *((spec.FOUND, value) for value in (2, -1)),
        *((word, value) for word in (spec.ARRAYS, spec.ROWS, spec.SPLITS) for value in (0, -1, 5, 2**62)),
        *((lane + spec.COUNT, value) for value in (0, -1)),
        *((lane + word, -1) for word in (spec.COLUMN, spec.LOWER)),
        (lane + spec.VALUE, 0),
        (spec.ARRAY + spec.BOUND, 9),
        (lane + spec.NEEDED, 2),
    ]:
        spoilt = result.clone()
        spoilt[word] = value
        if word == lane + spec.VALUE:
            spoilt[spec.ARRAY + spec.BOUND], spoilt[lane + spec.LOWER] = 9, 0
        with pytest.raises(ValueError, match="not a page_guard result"):
            decode(spoilt)


def test_a_cpu_takes_the_torch_path_without_importing_triton():
    program = (
        "import sys, torch; sys.modules['triton'] = None\n"
        "from gemma4_kernels.page_guard.launch import *\n"
        "table = GuardedTable(torch.tensor([[1, 7]], dtype=torch.int32), 4)\n"
        "found = PageGuard('cpu').check([table], torch.tensor([2]), 1, contain=True)\n"
        "print(found.offences[0].value)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=_environment())
    assert (done.returncode, done.stdout.strip()) == (0, "7"), done.stderr


def test_the_bench_refuses_without_cuda(tmp_path):
    environment = _environment() | {"CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, ROOT / "kernels/bench/bench_page_guard.py", "--output", tmp_path / "rows.json"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 3
    assert "CUDA" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "rows.json").exists()


COMPILE = """
import re
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from gemma4_kernels.page_guard.kernel import page_guard_kernel as kernel

KINDS = {"result": "*i64", "cache_seqlens": "*i32", "seq_lens": "*i64", "entries": "*i32", "indptr": "*i32"}
constants = {"KIND_0": 1, "KIND_1": 3, "KIND_2": 2, "KIND_3": 0, "CONTAIN": True, "BLOCK": 1024}
signature = {
    name: "constexpr" if name in constants else KINDS.get(name) or KINDS.get(name[:-2], "i64")
    for name in kernel.arg_names
}
for capability in (90, 100):
    compiled = triton.compile(ASTSource(kernel, signature, constants), target=GPUTarget("cuda", capability, 32))
    atomics = re.findall(r"\\\\b(?:atom|red)[.]", compiled.asm["ptx"])
    print(capability, len(compiled.asm["cubin"]) > 0, len(atomics))
"""


def test_compiles_for_hopper_and_blackwell_without_a_gpu_and_without_atomics(tmp_path):
    environment = _environment() | {"TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", COMPILE], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.split("\n")[:2] == ["90 True 0", "100 True 0"]


def _environment() -> dict[str, str]:
    return dict(os.environ) | {"PYTHONPATH": str(ROOT / "kernels")}


@pytest.mark.gpu
def test_neither_preparing_nor_launching_synchronises():
    given_, _, _ = arguments(clean(8, 64), "cuda")
    # The torch path is the CPU's and the reference; on a GPU it synchronises, and nothing promises otherwise.
    guard = PageGuard("cuda", "kernel")
    prepared = guard.prepare(**given_)
    torch.cuda.set_sync_debug_mode("error")
    try:
        guard.prepare(**given_).launch()
        prepared.launch()
        prepared.read()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    torch.cuda.synchronize()


@pytest.mark.gpu
def test_a_finding_arrives_in_pinned_memory_when_the_stream_gets_there():
    """Behind a long wait on the stream nothing has arrived, so the launch did not wait; no copy follows it."""
    pages = torch.tensor([[1, 2], [3, -5]], dtype=torch.int32, device="cuda")
    prepared = PageGuard("cuda").prepare(one(pages), torch.tensor([2, 2], device="cuda"), 1, contain=True)
    assert prepared.result.is_pinned()
    prepared.launch()
    torch.cuda.synchronize()
    prepared.read()
    pages[1, 1] = -5
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(500_000_000)
        prepared.launch()
        assert prepared.read() is None
    stream.synchronize()
    assert prepared.read() == Findings((Offence(0, 1, 1, -5, 4, 1),), (1,), (), (1,))
    assert pages.tolist() == [[1, 2], [3, 0]]


@pytest.mark.gpu
def test_what_was_found_can_be_read_after_the_context_died():
    program = (
        "import torch\n"
        "from gemma4_kernels.page_guard.launch import *\n"
        "table = GuardedTable(torch.tensor([[1, 7]], dtype=torch.int32, device='cuda'), 4)\n"
        "prepared = PageGuard('cuda').prepare([table], torch.tensor([2], device='cuda'), 1, contain=False)\n"
        "prepared.launch()\n"
        "torch.zeros(3, device='cuda')[torch.tensor([9], device='cuda')]\n"
        "try: torch.cuda.synchronize()\n"
        "except RuntimeError: print('died', prepared.read().offences[0].value, flush=True)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=_environment())
    assert done.stdout.strip() == "died 7", done.stderr


@pytest.mark.gpu
def test_many_launches_in_a_row_and_clean_after_a_finding():
    pages = torch.ones(64, 300, dtype=torch.int32, device="cuda")
    prepared = PageGuard("cuda").prepare(one(pages), torch.full((64,), 300, device="cuda"), 1, contain=True)
    for round_ in range(200):
        row, column = round_ % 64, 7 * round_ % 300
        pages[row, column] = bad = -1 - round_
        assert launch_and_read(prepared) == Findings((Offence(0, row, column, bad, 4, 1),), (1,), (), (row,))
        # Contained it is page 0, which is illegal here too.
        pages[row, column] = 1
        for _ in range(5):
            prepared.launch()
        assert launch_and_read(prepared) is None


@pytest.mark.gpu
def test_a_launch_in_a_captured_graph_reports_on_each_replay():
    rows, columns, page_size = 8, spec.BLOCK + 100, 16
    random = torch.Generator().manual_seed(0)
    static = [torch.ones(rows, columns, dtype=torch.int32, device="cuda") for _ in range(2)]
    kv_indices = torch.ones(rows * columns, dtype=torch.int64, device="cuda")
    indptr = torch.zeros(rows + 3, dtype=torch.int32, device="cuda")
    lengths, seq_lens = (torch.ones(rows, dtype=torch.int32, device="cuda") for _ in range(2))
    arrays = [
        GuardedTable(static[0], 900, NullPage.LEGAL_IN_PADDED_ROWS),
        GuardedTable(static[1], 90, NullPage.ILLEGAL, window_keys=64),
        GuardedSlots(kv_indices, 9000, NullPage.ILLEGAL, indptr),
    ]
    prepared = PageGuard("cuda").prepare(arrays, lengths, page_size, contain=True, padding=Padding(seq_lens, 0))
    assert launch_and_read(prepared) is None
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        prepared.launch()
    found = []
    for round_ in range(30):
        spoil = (0, 0.0002, 0.5)[round_ % 3]

        def spoilt(shape, low, bound, spoil=spoil):
            entries = torch.randint(low, bound, shape, generator=random)
            bad = torch.rand(shape, generator=random) < spoil
            entries[bad] = torch.randint(-9, 2 * bound, (int(bad.sum()),), generator=random)
            return entries.tolist()

        tables_ = [
            Table(spoilt((rows, columns), 1, 900), columns, 900, NullPage.LEGAL_IN_PADDED_ROWS),
            Table(spoilt((rows, columns), 1, 90), columns, 90, NullPage.ILLEGAL, 64),
        ]
        ends = torch.randint(0, rows * columns, (rows + 1,), generator=random).sort().values.tolist()
        ragged = Slots(spoilt((rows * columns,), page_size, 9000), 0, 9000, NullPage.ILLEGAL, ends)
        build = Build(
            [*tables_, ragged],
            torch.randint(0, columns * page_size + (50 if spoil else 0), (rows,), generator=random).tolist(),
            page_size,
            seq_lens=torch.randint(0, 2, (rows,), generator=random).tolist(),
        )
        for tensor, values in [
            *((tensor, table.values) for tensor, table in zip(static, tables_, strict=True)),
            (kv_indices, ragged.values),
            (indptr, [*ends, POISON, POISON]),
            (lengths, build.lengths),
            (seq_lens, build.seq_lens),
        ]:
            tensor.copy_(torch.tensor(values))
        graph.replay()
        torch.cuda.synchronize()
        expected, after = slow(build)
        assert prepared.read() == expected
        assert [tensor.tolist() for tensor in (*static, kv_indices)] == after
        found.append(expected)
    assert None in found
    assert any(found)


@pytest.mark.gpu
def test_rows_more_than_two_gibi_entries_apart():
    memory = torch.full((2**31 + 2**20,), 1, dtype=torch.int32, device="cuda")
    pages = memory.as_strided((3, 4), (2**30, 1))
    pages[2, 3] = -1
    memory[-1] = 77
    lengths, indptr = (torch.tensor(values, device="cuda") for values in ([4] * 3, [0, 4, 2**31, 2**31 + 2**20]))
    guard = PageGuard("cuda")
    found = guard.check([GuardedSlots(memory, 60, NullPage.ILLEGAL, indptr)], None, 1, contain=False)
    # Row 1 ends where row 2 of the table begins, and entry 3 of that is in row 2 of the slots.
    assert found == Findings((Offence(0, 2, 3, -1, 60, 1),), (2,), (), (2,))
    found = guard.check([GuardedTable(pages, 9)], lengths, 1, contain=True)
    assert found == Findings((Offence(0, 2, 3, -1, 9, 1),), (1,), (), (2,))
    assert bool((memory[: 2**30 + 8] == 1).all())
    assert pages.tolist() == [[1, 1, 1, 1], [1, 1, 1, 1], [1, 1, 1, 0]]


@pytest.mark.gpu
def test_new_widths_bounds_and_alignments_do_not_compile_again():
    from gemma4_kernels.page_guard.kernel import page_guard_kernel

    def binaries():
        return sum(len(cache[0]) for cache in page_guard_kernel.device_caches.values())

    guard = PageGuard("cuda")

    def check(rows, columns, offset, bound, step, page_size=64, window=-1):
        memory = torch.ones(rows * columns * step + offset, dtype=torch.int32, device="cuda")[offset:]
        pages = memory.view(rows, columns * step)[:, ::step]
        lengths = torch.full((rows,), columns, dtype=torch.int32, device="cuda")
        arrays = [GuardedTable(pages, bound, window_keys=window)]
        guard.check(arrays, lengths, page_size, contain=True)

    check(8, 64, 0, 1024, 1)
    before = binaries()
    for case in [
        (1, 1, 1, 1, 1),
        (3, 17, 3, 7, 1, 1, 0),
        (8, 2048, 0, 4097, 2, 16, 512),
        (2, 16, 4, 2**40, 5, 2**33, 2**40),
    ]:
        check(*case)
    assert binaries() == before
