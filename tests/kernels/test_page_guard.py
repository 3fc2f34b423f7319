"""page_guard: kernel and torch path against a slow reading in plain Python, bit for bit.

On this kind of machine the kernel runs in the Triton interpreter; where there is a GPU, the same tests run there.
"""

import itertools
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gemma4_kernels.page_guard import spec
from gemma4_kernels.page_guard.launch import Finding, GuardedTable, NullPage, Padding, PageGuard, decode

ROOT = Path(__file__).resolve().parents[2]
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cpu" if INTERPRETED or not torch.cuda.is_available() else "cuda"
PATHS = [
    pytest.param("torch", id="torch"),
    pytest.param(
        "kernel",
        id="kernel",
        marks=pytest.mark.skipif(DEVICE == "cpu" and not INTERPRETED, reason="needs CUDA or TRITON_INTERPRET=1"),
    ),
]
LOW, HIGH = -(2**31), 2**31 - 1
POISON = HIGH - 7
LAYOUTS = ("contiguous", "columns-apart", "rows-apart", "transposed")


@dataclass
class Build:
    """One metadata build as plain lists, and what a check of it is asked to do."""

    tables: list[list[list[int]]]
    columns: list[int]
    bounds: list[int]
    null_pages: list[NullPage]
    lengths: list[int]
    page_size: int = 16
    contain: bool = True
    seq_lens: list[int] | None = None
    fill: int = 1
    layout: str = "contiguous"
    length_type: torch.dtype = torch.int32


def live_columns(length: int, page_size: int, columns: int) -> int:
    return max(0, min(columns, -(-length // page_size)))


def slow(build: Build) -> tuple[Finding | None, list[list[list[int]]]]:
    """Plain Python integers, entry by entry. Returns what was found and the tables afterwards."""
    offences, after = [], [[list(row) for row in table] for table in build.tables]
    for t, r in itertools.product(range(len(build.tables)), range(len(build.lengths))):
        mode = build.null_pages[t]
        padded = build.seq_lens is not None and build.seq_lens[r] == build.fill
        null_legal = mode is NullPage.LEGAL or (mode is NullPage.LEGAL_IN_PADDED_ROWS and padded)
        for c in range(live_columns(build.lengths[r], build.page_size, build.columns[t])):
            value = build.tables[t][r][c]
            if not (0 if null_legal else 1) <= value < build.bounds[t]:
                offences.append((t, r, c, value))
                if build.contain:
                    after[t][r][c] = 0
    if not offences:
        return None, after
    counts = tuple(sum(1 for offence in offences if offence[0] == t) for t in range(len(build.tables)))
    rows = tuple(sorted({offence[1] for offence in offences}))
    return Finding(*offences[0], build.bounds[offences[0][0]], counts, rows), after


def lay_out(table: list[list[int]], columns: int, layout: str) -> tuple[torch.Tensor, torch.Tensor]:
    """A view that holds the table, and the whole memory that it is a view of, poisoned everywhere else."""
    rows = len(table)
    shape, step = {
        "contiguous": ((rows, columns), 1),
        "columns-apart": ((rows, 2 * columns), 2),
        "rows-apart": ((rows, columns + 3), 1),
        "transposed": ((columns, rows), 1),
    }[layout]
    memory = torch.full(shape, POISON, dtype=torch.int32)
    view = memory.T if layout == "transposed" else memory[:, : columns * step : step]
    view.copy_(torch.tensor(table, dtype=torch.int32).reshape(rows, columns))
    memory = memory.to(DEVICE)
    return (memory.T if layout == "transposed" else memory[:, : columns * step : step]), memory


def lengths_tensor(lengths: list[int], dtype: torch.dtype, strided: bool) -> torch.Tensor:
    tensor = torch.tensor(lengths, dtype=dtype, device=DEVICE)
    return torch.stack([tensor, torch.full_like(tensor, HIGH)], dim=-1)[:, 0] if strided else tensor


def run(build: Build, path: str, guard: PageGuard | None = None):
    """(finding, tables afterwards, poison intact?, result words)"""
    guard = guard or PageGuard(max(1, len(build.lengths)), DEVICE, path)
    views, memories = zip(*map(lay_out, build.tables, build.columns, itertools.repeat(build.layout)), strict=True)
    before = [memory.clone() for memory in memories]
    strided = build.layout == "columns-apart"
    padding = None
    if build.seq_lens is not None:
        padding = Padding(lengths_tensor(build.seq_lens, torch.int64, strided), build.fill)
    guard.check(
        [GuardedTable(*entry) for entry in zip(views, build.bounds, build.null_pages, strict=True)],
        lengths_tensor(build.lengths, build.length_type, strided),
        build.page_size,
        contain=build.contain,
        padding=padding,
    )
    after = [view.tolist() for view in views]
    for view, memory, old in zip(views, memories, before, strict=True):
        # With the view put back as it was, the memory around it has to be what it was.
        view.copy_(torch.as_strided(old, view.shape, view.stride()))
        assert torch.equal(memory, old), "memory outside the table was written"
    return decode(guard.result.cpu()), after, guard.result.tolist()


def assert_reads_like_the_slow_one(build: Build, path: str) -> Finding | None:
    expected, tables = slow(build)
    found, after, _ = run(build, path)
    assert found == expected
    assert after == tables
    return found


@st.composite
def builds(draw) -> Build:
    count, rows, page_size = draw(st.integers(1, 4)), draw(st.integers(0, 5)), draw(st.sampled_from([1, 3, 16, 64]))
    columns = [draw(st.integers(0, 7)) for _ in range(count)]
    bounds = [draw(st.integers(1, 9) | st.sampled_from([spec.MAX_BOUND])) for _ in range(count)]
    tables = []
    for width, bound in zip(columns, bounds, strict=True):
        ids = st.integers(-1, min(bound + 1, 12)) | st.sampled_from([0, 1, bound - 1, bound, LOW, HIGH])
        row = st.lists(ids, min_size=width, max_size=width)
        tables.append(draw(st.lists(row, min_size=rows, max_size=rows)))
    wide = draw(st.booleans())
    longest = max(columns) * page_size + 40
    length = st.integers(-3, longest) | (st.sampled_from([-(2**63), 2**63 - 1]) if wide else st.just(HIGH))
    fill = draw(st.integers(0, 2))
    padded = draw(st.booleans())
    modes = list(NullPage) if padded else [NullPage.ILLEGAL, NullPage.LEGAL]
    return Build(
        tables=tables,
        columns=columns,
        bounds=bounds,
        null_pages=[draw(st.sampled_from(modes)) for _ in range(count)],
        lengths=draw(st.lists(length, min_size=rows, max_size=rows)),
        page_size=page_size,
        contain=draw(st.booleans()),
        seq_lens=draw(st.lists(st.integers(0, 3), min_size=rows, max_size=rows)) if padded else None,
        fill=fill,
        layout=draw(st.sampled_from(LAYOUTS)),
        length_type=torch.int64 if wide else torch.int32,
    )


def clean(rows: int, columns: int, page_size: int = 16, tables: int = 2, **changes) -> Build:
    """Every entry live and legal: ids 1..bound-1, different from row to row and from table to table."""
    bounds = [1000 - 10 * t for t in range(tables)]
    return Build(
        tables=[
            [[1 + (31 * r + c + t) % (bounds[t] - 1) for c in range(columns)] for r in range(rows)]
            for t in range(tables)
        ],
        columns=[columns] * tables,
        bounds=bounds,
        null_pages=[NullPage.ILLEGAL] * tables,
        lengths=[columns * page_size] * rows,
        page_size=page_size,
        **changes,
    )


@settings(max_examples=150, deadline=None)
@given(builds())
@example(Build([[]], [4], [3], [NullPage.ILLEGAL], []))
@example(Build([[[], []]], [0], [3], [NullPage.ILLEGAL], [16, 16]))
@example(Build([[[], []], [[5], [0]]], [0, 1], [3, 3], [NullPage.ILLEGAL] * 2, [16, 16]))
@pytest.mark.parametrize("path", PATHS)
def test_equals_the_slow_reading(path, build):
    assert_reads_like_the_slow_one(build, path)


@settings(max_examples=50, deadline=None)
@given(builds())
@pytest.mark.skipif(DEVICE == "cpu" and not INTERPRETED, reason="needs CUDA or TRITON_INTERPRET=1")
def test_kernel_and_torch_path_leave_the_same_words_and_tables(build):
    assert run(build, "kernel")[1:] == run(build, "torch")[1:]


@pytest.mark.parametrize(
    "case", [case for case in spec.CASES if case.interpreted or DEVICE == "cuda"], ids=lambda c: c.name
)
@pytest.mark.parametrize("path", PATHS)
def test_a_planted_offence_is_found_at_every_corner(path, case):
    rows, columns = sorted({0, case.rows - 1}), {0, case.columns - 1, spec.BLOCK - 1, spec.BLOCK}
    places = [(r, c) for r in rows for c in sorted(columns) if c < case.columns]
    values = itertools.cycle([-1, 0, 1000, HIGH, LOW])
    for (row, column), value, contain in zip(places, values, itertools.cycle([True, False]), strict=False):
        build = clean(case.rows, case.columns, case.page_size, contain=contain, layout="rows-apart")
        build.tables[1][row][column] = value
        found = assert_reads_like_the_slow_one(build, path)
        assert found == Finding(1, row, column, value, 990, (0, 1), (row,))


@pytest.mark.parametrize("path", PATHS)
def test_the_bound_itself_is_out_and_the_page_before_it_is_in(path):
    for bound in (2, 17, spec.MAX_BOUND):
        build = Build([[[bound - 1, bound]]], [2], [bound], [NullPage.ILLEGAL], [32])
        assert assert_reads_like_the_slow_one(build, path) == Finding(0, 0, 1, bound, bound, (1,), (0,))


@pytest.mark.parametrize("path", PATHS)
def test_dead_columns_are_left_alone(path):
    build = clean(3, 6, contain=True)
    build.lengths = [33, 0, 16]
    for t, r in itertools.product(range(2), range(3)):
        for c in range(live_columns(build.lengths[r], 16, 6), 6):
            build.tables[t][r][c] = [POISON, -7, 0, LOW][(r + c) % 4]
    assert assert_reads_like_the_slow_one(build, path) is None
    build.lengths = [length + 16 for length in build.lengths]
    assert assert_reads_like_the_slow_one(build, path).counts == (3, 3)


@pytest.mark.parametrize("path", PATHS)
def test_the_null_page_by_mode(path):
    def found(mode, seq_lens=None):
        return assert_reads_like_the_slow_one(
            Build([[[0], [0]]], [1], [9], [mode], [1, 1], seq_lens=seq_lens, fill=1, contain=False), path
        )

    assert found(NullPage.LEGAL) is None
    assert found(NullPage.ILLEGAL).rows == (0, 1)
    # Row 1 only pads the batch. The exemption goes by seq_lens: a verify has the query's length in cache_seqlens too.
    assert found(NullPage.LEGAL_IN_PADDED_ROWS, [7, 1]).rows == (0,)
    assert found(NullPage.ILLEGAL, [1, 1]).rows == (0, 1)


@pytest.mark.parametrize("path", PATHS)
def test_a_padded_row_is_exempt_from_the_null_page_only(path):
    build = Build([[[-1]]], [1], [9], [NullPage.LEGAL_IN_PADDED_ROWS], [1], seq_lens=[1], fill=1)
    assert assert_reads_like_the_slow_one(build, path).value == -1


@pytest.mark.parametrize("path", PATHS)
def test_the_first_is_the_same_whatever_else_is_bad(path):
    """Everything from one place on is bad, over several programs, in every table: the first is that place."""
    build = clean(3, spec.BLOCK + 60, 1, tables=3)
    for t, r, c in itertools.product(range(3), range(3), range(spec.BLOCK + 60)):
        if (t, r, c) >= (1, 1, spec.BLOCK + 30):
            build.tables[t][r][c] = -1 - c
    runs = [run(build, path) for _ in range(5 if DEVICE == "cuda" else 2)]
    assert all(again == runs[0] for again in runs)
    found = runs[0][0]
    assert found[:4] == (1, 1, spec.BLOCK + 30, -1 - spec.BLOCK - 30)
    assert (found, runs[0][1]) == slow(build)


@pytest.mark.parametrize("path", PATHS)
def test_a_check_forgets_the_one_before_and_heals_overwritten_words(path):
    guard = PageGuard(8, DEVICE, path)
    bad, good = clean(3, 4, tables=4), clean(2, 4, tables=1)
    bad.tables[3][2][1] = -5
    assert run(bad, path, guard)[0] == Finding(3, 2, 1, -5, 970, (0, 0, 0, 1), (2,))
    assert run(good, path, guard)[0] is None
    guard.result.fill_(-1)
    assert run(good, path, guard)[0] is None
    run(bad, path, guard)
    empty = Build([[]], [4], [3], [NullPage.ILLEGAL], [])
    assert run(empty, path, guard)[0] is None
    assert not guard.result.any()


@pytest.mark.parametrize("path", PATHS)
def test_tables_may_share_memory_when_nothing_is_contained(path):
    pages = torch.tensor([[1, 5, 9]], dtype=torch.int32, device=DEVICE)
    lengths = torch.tensor([3], device=DEVICE)
    guard = PageGuard(1, DEVICE, path)
    tables = [GuardedTable(pages, 100), GuardedTable(pages, 6), GuardedTable(pages, 3)]
    assert decode(guard.check(tables, lengths, 1, contain=False).cpu()) == Finding(1, 0, 2, 9, 6, (0, 1, 2), (0,))
    with pytest.raises(ValueError, match="tables 0 and 1 share memory"):
        guard.check(tables, lengths, 1, contain=True)
    with pytest.raises(ValueError, match="entries that share memory"):
        guard.check([GuardedTable(pages[:, :1].expand(1, 3), 3)], lengths, 1, contain=True)


def ok() -> dict:
    return {
        "tables": [GuardedTable(torch.ones(2, 3, dtype=torch.int32), 4)],
        "cache_seqlens": torch.tensor([1, 2]),
        "page_size": 1,
        "contain": True,
    }


def one(pages: torch.Tensor, bound: int = 4, null_page: NullPage = NullPage.ILLEGAL) -> list[GuardedTable]:
    return [GuardedTable(pages, bound, null_page)]


PAGES = torch.ones(2, 3, dtype=torch.int32)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tables": []}, "0 tables"),
        ({"tables": one(PAGES) * 5}, "5 tables"),
        ({"tables": one(PAGES.long())}, "torch.int64"),
        ({"tables": one(PAGES[0])}, "expected .* int32"),
        ({"tables": one(PAGES.to("meta"))}, "on meta"),
        ({"tables": [*one(PAGES), *one(PAGES[:1])]}, r"table 1 is \[1, 3\]"),
        ({"tables": one(torch.ones(9, 3, dtype=torch.int32))}, "9 rows"),
        ({"tables": one(PAGES.new_ones(1).expand(2, 2**31))}, "entries"),
        ({"tables": one(PAGES, 0)}, "bound is 0"),
        ({"tables": one(PAGES, 2**31)}, "bound is 2147483648"),
        ({"tables": one(PAGES, 4, NullPage.LEGAL_IN_PADDED_ROWS)}, "no padding"),
        ({"page_size": 0}, "page_size is 0"),
        ({"cache_seqlens": torch.tensor([1, 2, 3])}, r"cache_seqlens is \[3\]"),
        ({"cache_seqlens": torch.tensor([1.0, 2.0])}, "cache_seqlens is .* torch.float32"),
        ({"padding": Padding(torch.tensor([1]), 1)}, "padding.seq_lens"),
        ({"tables": one(PAGES[:1].expand(2, 3))}, "share memory"),
    ],
)
def test_arguments_that_cannot_be_checked(change, message):
    with pytest.raises(ValueError, match=message):
        PageGuard(8, "cpu", "torch").check(**(ok() | change))


def test_guards_and_results_that_cannot_be():
    for rows in (0, spec.MAX_ROWS + 1):
        with pytest.raises(ValueError, match="max_rows"):
            PageGuard(rows, "cpu")
    with pytest.raises(ValueError, match="path is 'gpu'"):
        PageGuard(1, "cpu", "gpu")  # pyright: ignore[reportArgumentType]
    words = spec.FLAGS + 2
    for result in (torch.zeros(3, dtype=torch.int64), torch.zeros(words), torch.zeros(words, device="meta")):
        with pytest.raises(ValueError, match="result"):
            decode(result)
    for word in (spec.TABLES, spec.ROWS):
        result = torch.zeros(words, dtype=torch.int64)
        result[word] = 5
        with pytest.raises(ValueError, match="not a page_guard result"):
            decode(result)


def test_a_cpu_takes_the_torch_path_without_importing_triton():
    program = (
        "import sys, torch; sys.modules['triton'] = None\n"
        "from gemma4_kernels.page_guard.launch import *\n"
        "table = GuardedTable(torch.tensor([[1, 7]], dtype=torch.int32), 4)\n"
        "print(decode(PageGuard(1, 'cpu').check([table], torch.tensor([2]), 1, contain=True)).value)"
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
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from gemma4_kernels.page_guard.kernel import page_guard_kernel as kernel

KINDS = {"result": "*i64", "cache_seqlens": "*i32", "seq_lens": "*i64"}
constants = {"PAGE_SIZE": 64, "CONTAIN": True, "BLOCK": 1024}
signature = {
    name: "constexpr" if name in constants else KINDS.get(name, "*i32" if name.startswith("pages") else "i32")
    for name in kernel.arg_names
}
for capability in (90, 100):
    compiled = triton.compile(ASTSource(kernel, signature, constants), target=GPUTarget("cuda", capability, 32))
    print(capability, len(compiled.asm["cubin"]) > 0, "atom" in compiled.asm["ptx"] or "red" in compiled.asm["ptx"])
"""


def test_compiles_for_hopper_and_blackwell_without_a_gpu(tmp_path):
    environment = _environment() | {"TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", COMPILE], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.split("\n")[:2] == ["90 True True", "100 True True"]


def _environment() -> dict[str, str]:
    return dict(os.environ) | {"PYTHONPATH": str(ROOT / "kernels")}


@pytest.mark.gpu
def test_the_launcher_never_synchronises():
    build = clean(8, 64)
    views = [lay_out(table, 64, "contiguous")[0] for table in build.tables]
    tables = [GuardedTable(view, 1000) for view in views]
    lengths = torch.tensor(build.lengths, device="cuda")
    padding = Padding(lengths, 1)
    # The torch path is the CPU's and the reference; on a GPU it synchronises, and nothing promises otherwise.
    guard = PageGuard(8, "cuda", "kernel")
    host = guard.host_buffer()
    assert host.is_pinned()
    guard.check(tables, lengths, 16, contain=True, padding=padding)
    torch.cuda.set_sync_debug_mode("error")
    try:
        guard.check(tables, lengths, 16, contain=True, padding=padding)
        host.copy_(guard.result, non_blocking=True)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.gpu
def test_a_captured_check_follows_changing_tables():
    rows, columns, page_size = 8, spec.BLOCK + 100, 16
    shapes = {"dtype": torch.int32, "device": "cuda"}
    static = [torch.ones(rows, columns, **shapes) for _ in range(2)]
    lengths, seq_lens = torch.ones(rows, **shapes), torch.ones(rows, **shapes)
    guard = PageGuard(rows, "cuda")
    host = guard.host_buffer()
    modes = [NullPage.LEGAL_IN_PADDED_ROWS, NullPage.LEGAL]
    tables = [GuardedTable(pages, bound, mode) for pages, bound, mode in zip(static, (900, 90), modes, strict=True)]

    def check():
        guard.check(tables, lengths, page_size, contain=True, padding=Padding(seq_lens, 1))
        host.copy_(guard.result, non_blocking=True)

    check()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        check()
    random = torch.Generator().manual_seed(0)
    found = []
    for round_ in range(30):
        build = Build([], [columns] * 2, [900, 90], modes, [], page_size, fill=1)
        for bound in build.bounds:
            pages = torch.randint(1, bound, (rows, columns), generator=random)
            if round_ % 3:
                bad = torch.rand(rows, columns, generator=random) < (0.0002 if round_ % 3 == 1 else 0.5)
                pages[bad] = torch.randint(-9, 2 * bound, (int(bad.sum()),), generator=random)
            build.tables.append(pages.tolist())
        build.lengths = torch.randint(0, columns * page_size + 50, (rows,), generator=random).tolist()
        build.seq_lens = torch.randint(1, 3, (rows,), generator=random).tolist()
        for tensor, values in zip(
            [*static, lengths, seq_lens], [*build.tables, build.lengths, build.seq_lens], strict=True
        ):
            tensor.copy_(torch.tensor(values, dtype=torch.int32))
        graph.replay()
        torch.cuda.synchronize()
        expected, after = slow(build)
        assert decode(host) == expected
        assert [pages.tolist() for pages in static] == after
        found.append(expected)
    assert None in found
    assert any(found)


@pytest.mark.gpu
def test_rows_more_than_two_gibi_entries_apart():
    memory = torch.full((2**31 + 2**20,), 1, dtype=torch.int32, device="cuda")
    pages = memory.as_strided((3, 4), (2**30, 1))
    pages[2, 3] = -1
    guard = PageGuard(3, "cuda")
    lengths = torch.full((3,), 4, device="cuda")
    found = decode(guard.check([GuardedTable(pages, 9)], lengths, 1, contain=True).cpu())
    assert found == Finding(0, 2, 3, -1, 9, (1,), (2,))
    assert bool((memory[: 2**30 + 8] == 1).all())
    assert pages.tolist() == [[1, 1, 1, 1], [1, 1, 1, 1], [1, 1, 1, 0]]


@pytest.mark.gpu
def test_new_widths_bounds_and_alignments_do_not_compile_again():
    from gemma4_kernels.page_guard.kernel import page_guard_kernel

    def binaries():
        return sum(len(cache[0]) for cache in page_guard_kernel.device_caches.values())

    guard = PageGuard(8, "cuda")

    def check(rows, columns, offset, bound, step):
        memory = torch.ones(rows * columns * step + offset, dtype=torch.int32, device="cuda")[offset:]
        pages = memory.view(rows, columns * step)[:, ::step]
        lengths = torch.full((rows,), columns, dtype=torch.int32, device="cuda")
        guard.check([GuardedTable(pages, bound)], lengths, 64, contain=True)

    check(8, 64, 0, 1024, 1)
    before = binaries()
    for rows, columns, offset, bound, step in [
        (1, 1, 1, 1, 1),
        (3, 17, 3, 7, 1),
        (8, 2048, 0, 4097, 2),
        (2, 16, 4, 16, 5),
    ]:
        check(rows, columns, offset, bound, step)
    assert binaries() == before
