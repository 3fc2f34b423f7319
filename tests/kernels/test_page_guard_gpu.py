"""page_guard on a CUDA device: synchronisation, pinned memory, graphs, sizes, compilations."""

import subprocess
import sys

import pytest
import torch
from page_guard_by_hand import POISON, Build, Slots, Table, arguments, slow
from page_guard_runs import child_environment, clean, launch_and_read, one

from gemma4_kernels.page_guard import spec
from gemma4_kernels.page_guard.launch import Findings, GuardedSlots, GuardedTable, NullPage, Offence, Padding, PageGuard

pytestmark = pytest.mark.gpu


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


def test_a_finding_arrives_in_pinned_memory_when_the_stream_gets_there():
    """Nothing has arrived behind a long wait on the stream, so the launch did not wait; no copy follows it."""
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
    assert prepared.read() == Findings((Offence(0, 1, 1, -5, 1, 4),), (1,), (), (1,))
    assert pages.tolist() == [[1, 2], [3, 0]]


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
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=child_environment())
    assert done.stdout.strip() == "died 7", done.stderr


def test_many_launches_in_a_row_and_clean_after_a_finding():
    pages = torch.ones(64, 300, dtype=torch.int32, device="cuda")
    prepared = PageGuard("cuda").prepare(one(pages), torch.full((64,), 300, device="cuda"), 1, contain=True)
    for round_ in range(200):
        row, column = round_ % 64, 7 * round_ % 300
        pages[row, column] = bad = -1 - round_
        assert launch_and_read(prepared) == Findings((Offence(0, row, column, bad, 1, 4),), (1,), (), (row,))
        # Contained it is page 0, which is illegal here too.
        pages[row, column] = 1
        for _ in range(5):
            prepared.launch()
        assert launch_and_read(prepared) is None


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


def test_rows_more_than_two_gibi_entries_apart():
    memory = torch.full((2**31 + 2**20,), 1, dtype=torch.int32, device="cuda")
    pages = memory.as_strided((3, 4), (2**30, 1))
    pages[2, 3] = -1
    memory[-1] = 77
    lengths, indptr = (torch.tensor(values, device="cuda") for values in ([4] * 3, [0, 4, 2**31, 2**31 + 2**20]))
    guard = PageGuard("cuda")
    found = guard.check([GuardedSlots(memory, 60, NullPage.ILLEGAL, indptr)], None, 1, contain=False)
    # Row 1 ends where row 2 of the table begins, and entry 3 of that is in row 2 of the slots.
    assert found == Findings((Offence(0, 2, 3, -1, 1, 60),), (2,), (), (2,))
    found = guard.check([GuardedTable(pages, 9)], lengths, 1, contain=True)
    assert found == Findings((Offence(0, 2, 3, -1, 1, 9),), (1,), (), (2,))
    assert bool((memory[: 2**30 + 8] == 1).all())
    assert pages.tolist() == [[1, 1, 1, 1], [1, 1, 1, 1], [1, 1, 1, 0]]


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
