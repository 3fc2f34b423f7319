"""page_guard on arbitrary builds: kernel and torch path against a slow reading in plain Python."""

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from kernel_paths import DEVICE, PATHS, needs_kernel
from page_guard_by_hand import HIGH, LAYOUTS, LIMITS, Build, Slots, Table, arguments, rows_overlap
from page_guard_runs import (
    ILLEGAL,
    LEGAL,
    assert_contains_rows_that_overlap,
    assert_reads_like_the_slow_one,
    run,
)

from gemma4_kernels.page_guard import spec
from gemma4_kernels.page_guard.launch import NullPage, PageGuard


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


@pytest.mark.slow
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


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(builds())
@needs_kernel
def test_kernel_and_torch_path_leave_the_same_words_and_arrays(build):
    build.contain = build.contain and not rows_overlap(build)
    assert run(build, "kernel")[1:] == run(build, "torch")[1:]


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(builds())
@pytest.mark.parametrize("path", PATHS)
def test_a_check_finds_what_a_prepared_launch_finds(path, build):
    build.contain = build.contain and not rows_overlap(build)
    given_, views, _ = arguments(build, DEVICE)
    found = PageGuard(DEVICE, path).check(**given_)
    assert (found, [view.tolist() for view in views]) == run(build, path)[:2]
